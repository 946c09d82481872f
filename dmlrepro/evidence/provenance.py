"""Whether a table is still the one that was saved.

Nothing heavy is imported here, because `make results` asks at its start.
"""

import json
from pathlib import Path

from dmlrepro.files import sha256


def is_edited(table: Path) -> bool:
    """Whether a CSV differs from the one whose sha256 the `.json` beside it records.

    False where nothing is recorded: the file is missing or damaged, or was written before sums were recorded. Like all
    checksums here this finds accidents and not whoever writes the new sum too.
    """
    try:
        recorded = json.loads(table.with_suffix(".json").read_text(encoding="utf8")).get("sha256")
    except (OSError, ValueError):
        return False
    return recorded is not None and recorded != sha256(table)
