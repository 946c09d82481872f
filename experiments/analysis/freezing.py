"""The canonical form in which tests of claims are frozen: what a test states, in whatever module or order it stands.
data/frozen.json has the sha256 of each."""

import dataclasses
import hashlib
import json
from typing import Any

from experiments.analysis.claims import ClaimTest

# What is said of a test, or of the sentence that it is about, and is no part of what is compared.
REMARKS = ("universal", "ingredient", "revised")


def canonical(stated: Any) -> Any:
    """A test as plain data: dataclasses with their class and those fields that differ from their default."""
    if dataclasses.is_dataclass(stated) and not isinstance(stated, type):
        fields = {
            field.name: canonical(value)
            for field in dataclasses.fields(stated)
            if field.name not in REMARKS and (value := getattr(stated, field.name)) != field.default
        }
        return {"of": type(stated).__name__} | fields
    if isinstance(stated, dict):
        return {str(key): canonical(value) for key, value in stated.items()}
    return [canonical(item) for item in stated] if isinstance(stated, tuple | list) else stated


def digest(test: ClaimTest) -> str:
    """The sha256 of the canonical JSON of what a test decides by: without its controls."""
    decides = dataclasses.replace(test, parts=tuple(part for part in test.parts if not part.control))
    return hashlib.sha256(json.dumps(canonical(decides), sort_keys=True).encode()).hexdigest()
