"""What failed in a build, for the end of its log: `failures.py BUILD` prints each cell that raised, and its traceback,
and the end of the log of what failed otherwise.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

LINES = 30  # of a traceback or a log, from its end


def failures(build: Path) -> Iterator[str]:
    """A paragraph for each notebook in failed/ that the build asks for, and each seed whose log is younger than its
    mark."""
    listed = build / "executions.json"
    asked = json.loads(listed.read_text(encoding="utf8"))["executions"] if listed.exists() else None
    for path in sorted((build / "failed").glob("*.ipynb")):
        if asked is None or path.stem in asked:  # others lie there since an earlier build
            yield f"{path}\n{_cell_that_raised(path) or _end(build / f'{path.stem}.log')}"
    for log in sorted(build.glob("*.seed*.log")):
        mark = log.with_suffix(".trained")
        if not mark.exists() or mark.stat().st_mtime < log.stat().st_mtime:
            yield f"{log}\n{_end(log)}"


def _cell_that_raised(path: Path) -> str:
    """Number, code and traceback of the first cell with an error; "" without one, as after a killed kernel."""
    try:
        cells = json.loads(path.read_text(encoding="utf8"))["cells"]
    except ValueError:  # half written
        return ""
    for number, cell in enumerate(cells):
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                code = "".join(cell["source"]).splitlines()
                traceback = _plain("\n".join(output["traceback"])).splitlines()
                shown = [f"cell {number} of {len(cells)}:", *(f"    {line}" for line in code[:10])]
                return "\n".join([*shown, *traceback[-LINES:]])
    return ""


def _end(log: Path) -> str:
    """The last lines of a log."""
    if not log.exists():
        return "it left no log"
    return "\n".join(_plain(log.read_text(encoding="utf8", errors="replace")).splitlines()[-LINES:])


def _plain(text: str) -> str:
    """Without the colours of a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


if __name__ == "__main__":
    found = list(failures(Path(sys.argv[1])))
    print(*(f"\n--- {text}" for text in found), sep="\n")
    if found:
        print(f"\n{len(found)} failed; what is finished stays, the same command again does the rest")
