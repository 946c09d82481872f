"""Names of results files: a notebook and what was changed of its parameters. Nothing here needs torch."""

import hashlib
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from experiments.datasets.manifests import is_own


def stem_of(notebook: str, changes: Mapping[str, Any]) -> str:
    """A file's stem that names a notebook and its changed parameters: "10_pfml_retrieval--seeds=5,steps=600"; the end
    is a digest where it would exceed the 255 bytes that file systems allow."""
    changed = ",".join(f"{name}={word(value)}" for name, value in sorted(changes.items()))
    stem = f"{notebook}--{changed}" if changed else notebook
    if len(stem.encode()) <= 200:
        return stem
    return f"{stem.encode()[:180].decode(errors='ignore')}~{hashlib.sha256(stem.encode()).hexdigest()[:16]}"


def word(value: Any) -> str:
    """A value as a part of a file name; of a path only the last component is legible, a digest stands for the rest."""
    if isinstance(value, str) and is_own(value):
        digest = hashlib.sha256(value.encode()).hexdigest()[:8]
        return f"{word(PurePath(value.partition(':')[2]).name[:40])}-{digest}"
    if isinstance(value, list | tuple):  # whose items may hold the sign that joins them
        text = "+".join(str(item).replace("+", "-plus-") for item in value)
    else:
        text = str(value)
    return "".join(c if c.isalnum() or c in "+.-_" else "_" for c in text)
