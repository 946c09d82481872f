"""RunSpec -> RunResult, trained once and kept by content.

The key of a run is everything its numbers depend on: the spec, the images, the versions of the numerical packages,
the kind of device, and the source of the modules the run imports. The cache holds one folder per key, put there by a
single rename, so an interrupted run leaves nothing behind and two processes that train the same spec at once cannot
disturb each other. A folder is checked whenever it is read: the sha256 of its files, the form of its rows, and its key
against what it says it was made of. That stops accidents, not forgers, who can compute the sums and the key anew.

A run that the record has (records.py) is not trained either, on whatever machine; its weights are, once they are asked
for.
"""

import functools
import hashlib
import json
import lzma
import math
import multiprocessing
import os
import platform
import re
import sys
import tarfile
import threading
import traceback
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dmlrepro import progress
from dmlrepro.datasets import manifests
from dmlrepro.files import FullDisk, cache_root, check_seal, replacing, seal, set_aside, staging
from dmlrepro.networks import backbones
from dmlrepro.training import batches, distributed, inference, loop, records, sources
from dmlrepro.training.sources import versions
from dmlrepro.training.spec import LABELS, RunSpec

__all__ = ["RunResult", "RunSpec", "export_cache", "import_cache", "key_of", "run", "run_all", "versions"]

KEY = re.compile(r"[0-9a-f]{24}-[0-9a-f]{8}")
ROW = {"selection": str, "step": int, "metric": str, "value": float}  # a further network's rows have its name too
FEWER_AT_ONCE = "run fewer at once (`train --jobs 1`, fewer cores for `make`), or lower batch_size or image_size"


@dataclass(frozen=True)
class RunResult:
    """A finished run. Tensors are read from the cache when they are asked for; for them a run that only the record has
    is trained again."""

    spec: RunSpec
    key: str
    place: Path | None  # its folder in the cache; None if the record had it
    dataset: str  # the manifest's name, e.g. "cub-subset"
    rows: list[dict]
    cost: dict[str, float]
    made: dict  # what made it: commit, device, rounding, versions, machine, and the weights that it started from
    from_cache: bool
    name: str  # what it is, whatever code trained it on whatever machine, see records.py
    source: str  # the hash of the code that trained it
    record: Path | None = None  # the file that it is recorded in
    stale: bool = False  # that code is not the present one, and nobody found that both do the same

    @functools.cached_property
    def folder(self) -> Path:
        """Where its tensors lie.

        Raises:
            ValueError: it is stale, so that other weights would come of it now.
        """
        if self.place is not None:
            return self.place
        if self.stale:
            raise ValueError(
                f"{self.described}: the code that trained it is not the present one, and its weights are not at hand; "
                "`python -m dmlrepro records check` finds out whether both do the same, `records renew` trains it"
            )
        if _stored(key_of(self.spec)) is None:
            print(f"{self.described}: on record, trained again for its weights", file=sys.stderr, flush=True)
        return run(self.spec).folder

    @property
    def described(self) -> str:
        return named(self.spec)

    def metric(self, name: str, selection: str = "last") -> float:
        """One metric of the main network as a fraction; KeyError names what exists."""
        found = [row["value"] for row in loop.monitored(self.rows, name) if row["selection"] == selection]
        if not found:
            raise KeyError(f"no {name!r} at selection {selection!r}; rows: {self.rows}")
        return found[0]

    @functools.cached_property
    def arrays(self) -> dict[str, Tensor]:
        """`losses` (steps,) and `embeddings` (N, D), raw embeddings of the test images.

        With a scheme of several terms or networks also `losses <term>` and `embeddings <network>`.
        """
        return load_file(self.folder / "arrays.safetensors")

    @functools.cached_property
    def curve(self) -> Tensor:
        """Steps and losses (2, n) of up to `records.STRETCHES` equal stretches of the run."""
        kept = self._line["curve"] if self.place is None else records.curve(self.losses.numpy())
        return torch.tensor(kept).T

    @property
    def _line(self) -> dict:
        assert self.record is not None
        return records.of_runs_once(self.record.parent)[self.name][self.source]

    @property
    def losses(self) -> Tensor:
        return self.arrays["losses"]

    @property
    def embeddings(self) -> Tensor:
        return self.arrays["embeddings"]

    def loss_state(self) -> dict[str, Tensor]:
        """State dict of the trained loss, e.g. its proxies."""
        return load_file(self.folder / "loss.safetensors")

    def network(self, name: str = "network") -> backbones.EmbeddingNet:
        """The trained network, or another one that the scheme saved under a name, in evaluation mode on the CPU."""
        network = inference.build_network(self.spec, batches.load_dataset(self.spec))
        below = network.state_dict() if self.spec.train_from else {}  # of a tail only what was trained is saved
        network.load_state_dict(below | load_file(self.folder / f"{name}.safetensors"))
        return network.eval()


def run(spec: RunSpec) -> RunResult:
    """One run, from the cache or trained now."""
    return run_all([spec])[0]


def run_all(
    specs: Sequence[RunSpec],
    *,
    jobs: int | None = None,
    record: Path | None = None,
    measure: Callable[[RunResult], None] = lambda run: None,
    renew: bool = False,
) -> list[RunResult]:
    """Results in the order of the specs; what neither record nor cache has is trained, each distinct spec once.

    Specs that ask for one thread are trained side by side in `jobs` processes (default: the cores this process may
    use); others, and everything on CUDA, one after the other, on all visible GPUs (see `ranks_of`).

    record: the file that finished runs are added to, one by one (`records.file_of`); a run that any file beside it has
    is taken from there. What is trained then goes by seeds, so that a piece of a study is a seed with all its methods.
    None: no record is read or written. A reader's own images are never recorded.

    measure: called with each run before it is recorded, so that what tables need of its weights is on record by then.

    renew: what is on record by older code alone is trained too.

    A run that fails does not stop the others: they are trained and stored, then one error lists the failures. It has
    the type of the first that is no divergence; FloatingPointError where all diverged.

    Raises:
        FullDisk: at once, and what is being trained is ended, because it would be trained for nothing.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}; None: one per core")
    digests = functools.cache(_digest_of_data)  # own images are looked at once per call: later they may have changed
    identified = [identity_of(spec, digests) for spec in specs]
    keys = [_key(identity) for identity in identified]
    identities = dict(zip(keys, identified))
    of_key: dict[str, RunSpec] = {}
    for key, spec in zip(keys, specs):
        of_key.setdefault(key, spec)
    files = {key: record for key, spec in of_key.items() if record and not manifests.is_own(spec.dataset)}
    served = {key: line for key, file in files.items() if (line := _recorded(identities[key], file))}
    if renew:
        served = {key: (line, stale) for key, (line, stale) in served.items() if not stale}
    found = {key: None if key in served else _stored(key) for key in identities}
    missing = {key: spec for key, spec in zip(keys, specs) if found[key] is None and key not in served}
    if files:
        missing = dict(sorted(missing.items(), key=lambda item: item[1].seed))

    def keep(key: str) -> None:
        if key in files and key not in served:
            if (known := _recorded(identities[key], files[key])) and not known[1]:
                return  # another process was faster
            measure(_result(key, of_key[key], _stored(key), from_cache=False, record=files[key]))
            records.append(files[key], _line_of(identities[key], of_key[key], _stored(key)))

    parallel = {key: spec for key, spec in missing.items() if spec.threads == 1 and not torch.cuda.is_available()}
    workers = min(jobs or len(os.sched_getaffinity(0)), len(parallel))
    done, failures = 0, {}
    report = progress.reporter("runs trained", len(missing))

    def attempt(key: str, train: Callable, *arguments) -> None:
        nonlocal done
        try:
            train(*arguments)
            keep(key)
        except FullDisk:
            raise
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # they hold the run's tensors, which the next run has to fit
            failures[key] = error
        if key in missing:
            done += 1
            _show(done, len(missing)) if sys.stderr.isatty() else report(done)

    for key, stored in found.items():
        if stored is not None:
            attempt(key, lambda: None)

    def side_by_side(keys: Iterable[str], workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        others = multiprocessing.active_children()
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
            waiting = {pool.submit(_train_into_cache, identities[key], missing[key]): key for key in keys}
            try:
                while waiting:
                    finished, _ = wait(waiting, timeout=progress.EVERY, return_when=FIRST_COMPLETED)
                    for future in finished:
                        attempt(waiting.pop(future), future.result)
                    report(done)
            except BaseException as error:
                if isinstance(error, FullDisk):  # the pool would train those that it has handed out
                    for process in set(multiprocessing.active_children()) - set(others):
                        process.terminate()
                pool.shutdown(cancel_futures=True)  # what is finished stays in the cache
                raise

    if workers > 1:
        side_by_side(parallel, workers)
        # where memory is short the system kills a process, and its pool ends with it: one at a time they may all fit
        for key in [key for key, error in failures.items() if isinstance(error, BrokenProcessPool)]:
            del failures[key]
            done -= 1
            side_by_side([key], 1)
            if isinstance(failures.get(key), BrokenProcessPool):
                failures[key] = MemoryError("its process was killed, most likely for lack of memory; lower batch_size")
    for key, spec in missing.items():
        if workers <= 1 or key not in parallel:
            attempt(key, _train_into_cache, identities[key], spec, f"{spec.loss or 'untrained'} seed {spec.seed}")
    if failures and len(missing) <= 1:
        raise next(iter(failures.values()))
    if failures:
        tried = {key: spec for key, spec in of_key.items() if key in missing or key in failures}
        raise _failed(tried, failures) from next(iter(failures.values()))
    found |= {key: _stored(key) for key in missing}
    return [
        _from_record(key, spec, *served[key], files[key])
        if key in served
        else _result(key, spec, found[key], from_cache=key not in missing, record=files.get(key))
        for key, spec in zip(keys, specs)
    ]


def on_record(specs: Sequence[RunSpec], file: Path) -> list[bool]:
    """Of each spec, whether the record has its run in any file beside this one, stale ones included."""
    digests = functools.cache(_digest_of_data)
    return [_recorded(identity_of(spec, digests), file) is not None for spec in specs]


def _recorded(identity: dict[str, dict], file: Path) -> tuple[dict, bool] | None:
    """The line of a run, and whether it is stale; None if the record has none."""
    found = records.find(file.parent, records.name_of(identity["what"]), identity["what"]["source"])
    return None if found is None else (found[0], found[1] == records.STALE)


def _line_of(identity: dict[str, dict], spec: RunSpec, stored: tuple[Path, dict] | None) -> dict:
    """A finished run as a line of the record."""
    if stored is None:
        raise OSError(f"run {_key(identity)} was trained and cannot be read again; check the disk of {cache_root()}")
    folder, content = stored
    losses = load_file(folder / "arrays.safetensors").get("losses")
    what = identity["what"]
    return {
        "run": records.name_of(what),
        "described": named(spec),
        "labels": {name: getattr(spec, name) for name in LABELS},
        "spec": what["spec"],
        "data": what["data"],
        "weights": what["weights"],
        "source": what["source"],
        "dataset": content["dataset"],
        "rows": content["rows"],
        "curve": [] if losses is None else records.curve(losses.numpy()),
        "cost": content["cost"],
        "made": _made(content),
    }


def _from_record(key: str, spec: RunSpec, line: Mapping, stale: bool, file: Path) -> RunResult:
    what = (line["dataset"], line["rows"], line["cost"], line["made"])
    return RunResult(spec, key, None, *what, True, line["run"], line["source"], file, stale)


def _failed(missing: Mapping[str, RunSpec], failures: Mapping[str, Exception]) -> Exception:
    """One error that lists the runs that failed."""
    failures = {key: failures[key] for key in missing if key in failures}  # not as they happened to end
    errors = list(failures.values())
    worst = next((error for error in errors if not isinstance(error, FloatingPointError)), errors[0])
    known = (FloatingPointError, MemoryError, ValueError, OSError)
    kind = next((each for each in known if isinstance(worst, each)), RuntimeError)
    lines = [f"  {named(missing[key])}: {error or type(error).__name__}" for key, error in failures.items()]
    return kind(
        f"{len(failures)} of {len(missing)} runs failed, the others are finished and in the cache:\n"
        + "\n".join(lines)
        + "\nChange or leave out what failed and start again: finished runs are not trained again."
    )


def named(spec: RunSpec) -> str:
    """A run in words, as in "PFML glyphs seed 0"."""
    words = (spec.method or spec.loss or "untrained", spec.setting, spec.dataset, f"seed {spec.seed}")
    return " ".join(word for word in (*words, "" if spec.fold is None else f"fold {spec.fold}") if word)


def _start_worker() -> None:
    """One thread per worker, and none outlives a killed notebook."""
    torch.set_num_threads(1)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
    os._exit(1)


def key_of(spec: RunSpec, digests: Callable | None = None) -> str:
    """The content key of a run: 24 hex digits for what is trained and 8 for the machine it is trained on.

    digests: as in `identity_of`.
    """
    return _key(identity_of(spec, digests))


def _key(identity: dict[str, dict]) -> str:
    return f"{_digest(identity['what'])[:24]}-{_digest(identity['where'])[:8]}"


def identity_of(spec: RunSpec, digests: Callable | None = None) -> dict[str, dict]:
    """All that the key of a run is made of: `what` is trained, and `where`.

    digests: a cached `_digest_of_data` for many runs at a time; the reader's own images are read anew without one.
    """
    # what is not asked for is left out, so that a field added later leaves the keys of runs that do not use it
    asked = {name: value for name, value in spec.as_dict().items() if not _is_nothing(value)}
    if manifests.is_own(spec.dataset):
        del asked["dataset"]  # a folder has many spellings; the name and content of its images are the data's digest
    else:
        digests = _kept_digest_of_data
    what = {
        "spec": asked,
        "data": (digests or _digest_of_data)(
            spec.dataset, spec.label_noise, spec.seed if spec.label_noise else 0, spec.images_per_class
        ),
        "weights": backbones.weights_digest(spec.backbone, spec.weights),
        "source": source_hash(spec.loss, spec.scheme),
    }
    where = {
        "versions": versions(),
        "device": distributed.device_for_training().type + (f" x {ranks}" if (ranks := ranks_of(spec)) > 1 else ""),
        "machine": platform.machine(),
        # a GPU's results do not depend on the threads beside it, whose default differs between processes
        "threads": spec.threads or (0 if torch.cuda.is_available() else torch.get_num_threads()),
    }
    return {"what": what, "where": where}


def _is_nothing(value) -> bool:
    return value is None or value is False or value == {} or value == ()  # but 0 is something: a fold, a seed


def _digest(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@functools.cache
def source_hash(loss: str | None, scheme: str) -> str:
    """Hash of every module of ours that a run with this loss and this scheme imports."""
    return sources.source_hash(_roots(loss, scheme))


def code_of(loss: str | None, scheme: str) -> list[Path]:
    """The files of these modules."""
    return sources.used_by(_roots(loss, scheme), without=sources.IN_THE_KEY)


def _roots(loss: str | None, scheme: str) -> list[Path]:
    roots = [sources.PACKAGE / "training" / "loop.py"]
    if loss is not None:  # without a loss nothing is trained
        roots += [
            sources.PACKAGE / "losses" / f"{loss.partition('.')[0]}.py",
            sources.PACKAGE / "training" / "schemes" / f"{scheme}.py",
        ]
    return roots


def _digest_of_data(dataset: str, label_noise: float, seed: int, images_per_class: int | None) -> str:
    manifest = manifests.load(dataset, label_noise=label_noise, seed=seed, images_per_class=images_per_class)
    return f"{manifest.name}:{manifest.digest()}"


_kept_digest_of_data = functools.cache(_digest_of_data)  # of a data set that stays as it is while a process runs


def folder_of(key: str) -> Path:
    """Where a run of this machine lies, or the same run imported from another one."""
    runs = cache_root() / "runs"
    if not (runs / key).exists():
        for imported in sorted(runs.glob(f"{key.partition('-')[0]}-*/imported")):
            if KEY.fullmatch(imported.parent.name):  # else it was set aside
                return imported.parent
    return runs / key


def ranks_of(spec: RunSpec) -> int:
    """Processes that train a run; one where no whole network is trained.

    A run for one thread takes seconds, as long as starting the processes: it is spread only where that was asked for.
    """
    small = spec.threads == 1 and "DMLREPRO_RANKS" not in os.environ
    if spec.loss is None or spec.train_from or small:
        return 1
    return min(distributed.ranks_for(distributed.device_for_training().type), spec.batch_size)


def _train_into_cache(identity: dict[str, dict], spec: RunSpec, described: str | None = None) -> None:
    if folder_of(_key(identity)).exists():  # another process was faster
        return
    try:
        if (ranks := ranks_of(spec)) > 1:
            distributed.launch(identity, spec.as_dict(), ranks)
        else:
            train_and_store(identity, spec, described)
        return
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        said = str(error).partition(". ")[0]
    # not while the error is held, whose frames hold the run's tensors
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        raise MemoryError(f"out of GPU memory ({said}); lower batch_size or image_size, or precision = 'bfloat16'")
    raise MemoryError(f"out of memory ({said}); {FEWER_AT_ONCE}")


def _is_out_of_memory(error: Exception) -> bool:
    """torch has an exception of its own on GPUs only; on CPUs the allocator says it in words."""
    said = str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in said


def train_and_store(identity: dict[str, dict], spec: RunSpec, described: str | None = None) -> None:
    """Train a run and put it into the cache. Every rank of a distributed run calls this, the first one stores.

    identity: of `identity_of`, from the process that asked for the run: ranks may see other threads.
    """
    key = _key(identity)
    threads = torch.get_num_threads()
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    try:
        checkpoint = cache_root() / "checkpoints" / f"{key}.pt"
        outcome = loop.train(spec, checkpoint=checkpoint, progress=described)
    finally:
        torch.set_num_threads(threads)
    if distributed.rank() > 0:
        return
    with replacing(cache_root() / "runs" / key) as folder:
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
            "made": sources.checkout() | {"device": device_name(), "rounding": rounding()},
        }
        (folder / "result.json").write_text(json.dumps(record, indent=1), encoding="utf8")
        seal(folder)
    checkpoint.unlink(missing_ok=True)  # no sooner: storing may fail


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU {platform.machine()}"


@functools.cache
def rounding() -> str:
    """How this processor rounds, with its libraries: a digest of elementary functions, a product and a convolution.

    Machines with the same digest give training runs the same bytes, as far as these operations tell.
    """
    generator = torch.Generator().manual_seed(0)
    numbers = 0.01 + 3 * torch.rand(4096, generator=generator)
    images, kernels = (torch.randn(size, generator=generator) for size in ((8, 16, 16, 16), (32, 16, 3, 3)))
    matrix, threads = numbers.view(64, 64), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = [numbers.log(), numbers.exp(), numbers.pow(1.7), numbers.tanh(), numbers.sqrt(), matrix.softmax(1)]
        found += [matrix @ matrix.T, matrix.double() @ matrix.double(), torch.nn.functional.conv2d(images, kernels)]
    finally:
        torch.set_num_threads(threads)
    return hashlib.sha256(b"".join(each.contiguous().numpy().tobytes() for each in found)).hexdigest()[:16]


def _stored(key: str) -> tuple[Path, dict] | None:
    """Where a run lies in the cache, and its record; None if it does not. What is damaged is set aside."""
    while (folder := folder_of(key)).exists():
        try:
            return folder, _checked(folder)
        except ValueError as error:
            set_aside(folder, error)
    return None


def _checked(folder: Path) -> dict:
    """The record of the run in a folder; ValueError says in what the folder is not as `train_and_store` left it."""
    if not KEY.fullmatch(folder.name):
        raise ValueError("its name is not the key of a run")
    check_seal(folder)
    try:
        record = json.loads((folder / "result.json").read_text(encoding="utf8"))
        key, rows, made = _key(record), record["rows"], record["made"] | record["where"]
        well_formed = all(isinstance(row[name], kind) for row in rows for name, kind in ROW.items())
        finite = all(math.isfinite(row["value"]) for row in rows)
        complete = {"dataset", "cost"} <= set(record) and {"device", "rounding", "versions"} <= set(made)
        tensors = all((folder / f"{name}.safetensors").is_file() for name in ("arrays", "network"))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"result.json is not the record of a run: {type(error).__name__}: {error}") from error
    if key != folder.name:
        raise ValueError("its spec, data, weights, source or versions are not those of its key")
    if not (rows and well_formed and finite and complete and tensors):
        raise ValueError("its rows, its record or its tensors are not complete")
    return record


def _result(
    key: str, spec: RunSpec, stored: tuple[Path, dict] | None, *, from_cache: bool, record: Path | None
) -> RunResult:
    if stored is None:
        raise OSError(f"run {key} was trained and cannot be read again; check the disk of {cache_root()}")
    folder, content = stored
    what = content["what"]
    numbers = (content["dataset"], content["rows"], content["cost"], _made(content))
    return RunResult(spec, key, folder, *numbers, from_cache, records.name_of(what), what["source"], record)


def _made(content: Mapping) -> dict:
    """What made a run, of its record in the cache."""
    where = {name: content["where"][name] for name in ("versions", "machine", "threads")}
    return content["made"] | where | {"weights": content["what"]["weights"]}


def _show(done: int, total: int) -> None:
    """One line of a terminal, written over and over."""
    print(f"\r{done} of {total} runs trained", end="\n" if done == total else "", file=sys.stderr, flush=True)


def forget(specs: Iterable[RunSpec]) -> None:
    """Remove the runs of these specs that are in the cache: those of a search are wanted for their scores only."""
    for folder in {folder_of(key_of(spec)) for spec in specs}:
        if folder.exists():
            with staging(folder.parent) as discarded:
                folder.rename(discarded / folder.name)  # whole or not at all, also if interrupted


def export_cache(archive: Path) -> int:
    """Pack every cached run (results, provenance and weights) into a tar file; returns how many.

    Damaged ones are set aside, with a warning.
    """
    keys = sorted(path.name for path in (cache_root() / "runs").glob("*") if KEY.fullmatch(path.name))
    stored = [(key, found[0]) for key in keys if (found := _stored(key))]
    if not stored:
        raise FileNotFoundError(f"no runs in {cache_root() / 'runs'}; train some first")
    with replacing(Path(archive)) as temporary, tarfile.open(temporary, "w") as tar:
        for key, folder in stored:
            tar.add(folder, arcname=key)
    return len(stored)


def import_cache(archive: Path) -> int:
    """Add the runs of an exported archive to the cache; runs already here are kept. Returns how many were added.

    Raises:
        ValueError: something in the archive is damaged or not a run; then nothing is added.
    """
    target = cache_root() / "runs"
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
