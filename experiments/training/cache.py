"""The cache of runs: a folder per key, with rows, curves, embeddings and weights.

A folder is put there by a single rename, so an interrupted run leaves nothing behind and two processes that train the
same spec at once cannot disturb each other. It is checked whenever it is read: the sha256 of its files, the form of its
rows, and its key against what it says it was made of. That stops accidents, not forgers, who can compute the sums and
the key anew.
"""

import json
import lzma
import math
import re
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from experiments.datasets.manifests import is_own
from experiments.files import cache_root, check_seal, replacing, seal, set_aside, staging
from experiments.training import batches, keys, loop, sources
from experiments.training.spec import RunSpec

KEY = re.compile(r"[0-9a-f]{24}-[0-9a-f]{8}")
ROW = {"selection": str, "step": int, "metric": str, "value": float}  # a further network's rows have its name too


def _root() -> Path:
    return cache_root() / "runs"


def folder_of(key: str) -> Path:
    """Where a run of this machine lies, or the same run imported from another one."""
    runs = _root()
    if not (runs / key).exists():
        for imported in sorted(runs.glob(f"{key.partition('-')[0]}-*/imported")):
            if KEY.fullmatch(imported.parent.name):  # else it was set aside
                return imported.parent
    return runs / key


def store(identity: dict[str, dict], spec: RunSpec, outcome: loop.Outcome) -> None:
    """Put what the training loop made of a spec into the cache. identity: of `keys.identity_of`."""
    with replacing(_root() / keys.of_identity(identity)) as folder:
        folder.mkdir()
        for name, state in outcome.states.items():
            save_file(_contiguous(state), folder / f"{name}.safetensors")
        curves = {"losses": outcome.losses} | {f"losses {name}": values for name, values in outcome.terms.items()}
        embeddings = {f"embeddings {name}".rstrip(): values for name, values in outcome.embeddings.items()}
        save_file(_contiguous(curves | embeddings), folder / "arrays.safetensors")
        record = identity | {
            "dataset": batches.load_dataset(spec).name,
            "rows": outcome.rows,
            "cost": outcome.cost,
            "made": sources.checkout() | {"device": keys.device_name(), "rounding": keys.rounding()},
        }
        (folder / "result.json").write_text(json.dumps(record, indent=1), encoding="utf8")
        seal(folder)


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def stored(key: str) -> tuple[Path, dict] | None:
    """Where a run lies in the cache, and its record; None if it does not. What is damaged is set aside."""
    while (folder := folder_of(key)).exists():
        try:
            return folder, _checked(folder)
        except ValueError as error:
            set_aside(folder, error)
    return None


def read(key: str) -> tuple[Path, dict]:
    """`stored`, of a run that was just trained."""
    run = stored(key)
    if run is None:
        raise OSError(f"run {key} was trained and cannot be read again; check the disk of {cache_root()}")
    return run


def _checked(folder: Path) -> dict:
    """The record of the run in a folder; ValueError says in what the folder is not as `store` left it."""
    if not KEY.fullmatch(folder.name):
        raise ValueError("its name is not the key of a run")
    check_seal(folder)
    try:
        record = json.loads((folder / "result.json").read_text(encoding="utf8"))
        key, rows, made = keys.of_identity(record), record["rows"], record["made"] | record["where"]
        well_formed = all(isinstance(row[name], kind) for row in rows for name, kind in ROW.items())
        scored = bool(rows) or is_own(record["dataset"])  # a reader's images may have no labels
        finite = all(math.isfinite(row["value"]) for row in rows)
        complete = {"dataset", "cost"} <= set(record) and {"device", "rounding", "versions"} <= set(made)
        tensors = all((folder / f"{name}.safetensors").is_file() for name in ("arrays", "network"))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"result.json is not the record of a run: {type(error).__name__}: {error}") from error
    if key != folder.name:
        raise ValueError("its spec, data, weights, code or versions are not those of its key")
    if not (scored and well_formed and finite and complete and tensors):
        raise ValueError("its rows, its record or its tensors are not complete")
    return record


def forget(specs: Iterable[RunSpec]) -> None:
    """Remove the runs of these specs that are in the cache: those of a search are wanted for their scores only."""
    for folder in {folder_of(keys.key_of(spec)) for spec in specs}:
        if folder.exists():
            with staging(folder.parent) as discarded:
                folder.rename(discarded / folder.name)  # whole or not at all, also if interrupted


def export_to(archive: Path) -> int:
    """Pack every cached run (results, provenance and weights) into a tar file; returns how many.

    Damaged ones are set aside, with a warning.
    """
    every = sorted(path.name for path in _root().glob("*") if KEY.fullmatch(path.name))
    sound = [(key, run[0]) for key in every if (run := stored(key))]
    if not sound:
        raise FileNotFoundError(f"no runs in {_root()}; train some first")
    with replacing(Path(archive)) as temporary, tarfile.open(temporary, "w") as tar:
        for key, folder in sound:
            tar.add(folder, arcname=key)
    return len(sound)


def import_from(archive: Path) -> int:
    """Add the runs of an exported archive to the cache; runs already here are kept. Returns how many were added.

    Raises:
        ValueError: something in the archive is damaged or not a run; then nothing is added.
    """
    target = _root()
    with staging(target) as extracted:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(extracted, filter="data")  # refuses absolute paths, "..", links that leave the folder
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{archive} is no complete tar file ({reason}); nothing was imported") from error
        folders = sorted(extracted.iterdir())
        if not folders:
            raise ValueError(f"{archive} holds no runs; nothing was imported")
        for folder in folders:
            try:
                _checked(folder)
            except (OSError, ValueError) as error:
                raise ValueError(f"{archive}: {folder.name}: {error}; nothing was imported") from error
            (folder / "imported").touch()
            seal(folder)
        new = [folder for folder in folders if not (target / folder.name).exists()]
        for folder in new:
            folder.rename(target / folder.name)
    return len(new)
