"""The cache of runs: a folder per key, with rows, curves, embeddings and weights.

A folder is put there by a single rename, so an interrupted run leaves nothing behind and two processes that train the
same spec at once cannot disturb each other. Whenever it is read, the sha256 of its files is compared, and its key with
what it says it was made of. That stops accidents, not forgers.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save_file

from experiments.files import atomic_write, cache_root, is_sound, quarantine, temporary_folder, write_checksums
from experiments.training import batches, keys, loop, sources
from experiments.training.spec import RunSpec


def folder_of(key: str) -> Path:
    return cache_root() / "runs" / key


def store(identity: dict[str, dict], spec: RunSpec, outcome: loop.Outcome) -> None:
    """Put what the training loop made of a spec into the cache. identity: of `keys.identity_of`."""
    with atomic_write(folder_of(keys.of_identity(identity))) as folder:
        folder.mkdir()
        curves = {"losses": outcome.losses} | {f"losses {name}": values for name, values in outcome.terms.items()}
        embeddings = {f"embeddings {name}".rstrip(): values for name, values in outcome.embeddings.items()}
        for name, tensors in (outcome.states | {"arrays": curves | embeddings}).items():
            save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / f"{name}.safetensors")
        record = identity | {
            "dataset": batches.load_dataset(spec).name,
            "rows": outcome.rows,
            "cost": outcome.cost,
            "made": sources.checkout() | {"device": keys.device_name(), "rounding": keys.rounding()},
        }
        (folder / "result.json").write_text(json.dumps(record, indent=1), encoding="utf8")
        write_checksums(folder)


def stored(key: str) -> tuple[Path, dict] | None:
    """Where a run lies in the cache, and its record; None if it does not. What is damaged is set aside."""
    if not is_sound(folder := folder_of(key)):
        return None
    record = json.loads((folder / "result.json").read_text(encoding="utf8"))
    if keys.of_identity(record) == key:
        return folder, record
    quarantine(folder, "its spec, data, weights, code or versions are not those of its key")
    return None


def read(key: str) -> tuple[Path, dict]:
    """`stored`, of a run that was just trained."""
    run = stored(key)
    if run is None:
        raise OSError(f"run {key} was trained and cannot be read again; check the disk of {cache_root()}")
    return run


def forget(specs: Iterable[RunSpec]) -> None:
    """Remove the runs of these specs that are in the cache: those of a search are wanted for their scores only."""
    for folder in {folder_of(keys.key_of(spec)) for spec in specs}:
        if folder.exists():
            with temporary_folder(folder.parent) as discarded:
                folder.rename(discarded / folder.name)  # whole or not at all, also if interrupted
