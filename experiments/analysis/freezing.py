"""The canonical form in which tests of claims are frozen: what a test states, in whatever module or order it stands.
data/frozen.json has the sha256 of each."""

import dataclasses
import hashlib
import json
from typing import Any

from experiments.analysis.claims import ClaimTest

KINDS: dict[str, str] = {}  # class in the code -> its frozen name, where they differ by now
FIELDS: dict[str, str] = {}  # likewise of fields


def canonical(stated: Any) -> Any:
    """A test as plain data: dataclasses with their class and those fields that differ from their default."""
    if dataclasses.is_dataclass(stated) and not isinstance(stated, type):
        name = type(stated).__name__
        fields = {
            FIELDS.get(field.name, field.name): canonical(value)
            for field in dataclasses.fields(stated)
            if (value := getattr(stated, field.name)) != field.default
        }
        return {"kind": KINDS.get(name, name)} | fields
    if isinstance(stated, dict):
        return {str(key): canonical(value) for key, value in stated.items()}
    return [canonical(item) for item in stated] if isinstance(stated, tuple | list) else stated


def digest(test: ClaimTest) -> str:
    """The sha256 of the canonical JSON of a test."""
    return hashlib.sha256(json.dumps(canonical(test), sort_keys=True).encode()).hexdigest()
