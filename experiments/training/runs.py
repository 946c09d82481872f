"""RunSpec -> RunResult, trained once: what neither the record (records.py) nor the cache has is trained. A run on
record is not trained again on whatever machine; its weights are, once they are asked for.

The cache has a folder per key, with rows, curves, embeddings and weights. It is put there by a single rename, so an
interrupted run leaves nothing behind and two processes that train one spec at once cannot disturb each other. Whenever
it is read, the sha256 of its files is compared.
"""

import dataclasses
import functools
import json
import math
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dmlrepro import retrieval
from experiments import progress, variables
from experiments.datasets import manifests
from experiments.files import atomic_write, cache_root, refuse_damaged, temporary_folder, write_checksums
from experiments.networks import backbones
from experiments.training import batches, inference, keys, loop, records, scheduling, sources
from experiments.training.device import repeatable, threads
from experiments.training.loop import monitored
from experiments.training.spec import LABELS, RunSpec

OWN_LOSS = "own.OwnLoss"  # a loss of the reader's own, see own_loss.py


@dataclass(frozen=True)
class RunResult:
    """A finished run. Tensors are read from the cache when they are asked for; for them a run that only the record has
    is trained again."""

    spec: RunSpec
    key: str
    name: str  # what it is, whatever code trained it on whatever machine, see records.py
    version: int | None  # of the code that trained it, see `records.version_of`
    dataset: str  # the manifest's name, e.g. "cub-subset"
    rows: list[dict]
    cost: dict[str, float]
    made: dict  # what made it: commit, device, rounding, versions, machine, and the weights that it started from
    place: Path | None = None  # its folder in the cache; None if the record had it
    from_cache: bool = True
    record: Path | None = None  # the file that it is stored in
    line: Mapping | None = None  # its line there
    stale: bool = False  # the present code is not compatible with that version
    measured_only: bool = False  # whether its weights may not be asked for, see `records.derived`

    @functools.cached_property
    def folder(self) -> Path:
        """Where its tensors lie. ValueError: it is outdated, so that other weights would come of it now; NotMeasured:
        its weights may not be asked for, or DMLREPRO_TRAIN=0 forbids training it again."""
        if self.measured_only:
            raise records.NotMeasured
        if self.place is not None:
            return self.place
        if self.stale:
            raise ValueError(
                f"{self.described}: it was trained by version {self.version} of its code, which is outdated, and its "
                "weights are not at hand; `python -m experiments train --rerun` trains it anew"
            )
        if not folder_of(keys.key_of(self.spec)).exists():
            if not variables.trains():
                raise records.NotMeasured(f"the weights of {self.described} are not at hand, and DMLREPRO_TRAIN=0")
            print(f"{self.described}: on record, trained again for its weights", file=sys.stderr, flush=True)
        again = run(self.spec)
        _refuse_another(self, again.rows)
        return again.folder

    @property
    def described(self) -> str:
        return named(self.spec)

    def metric(self, name: str, selection: str = "last") -> float:
        """One metric of the main network as a fraction; KeyError names what exists."""
        values = [row["value"] for row in monitored(self.rows, name) if row["selection"] == selection]
        if not values:
            raise KeyError(f"no {name!r} at selection {selection!r}; rows: {self.rows}")
        return values[0]

    @functools.cached_property
    def arrays(self) -> dict[str, Tensor]:
        """`losses` (steps,) and `embeddings` (N, D), raw embeddings of the test images; with an algorithm of several
        terms or networks also `losses <term>` and `embeddings <network>`."""
        return load_file(self.folder / "arrays.safetensors")

    @property
    def correct_per_class(self) -> list[list[int]] | None:
        """[class, queries whose nearest image is of their class, queries] of each test class, where its line has it."""
        rows = self.line.get("per_class") if self.line else None
        return rows and [[class_id, round(correct), queries] for class_id, queries, correct, _ in rows]

    @property
    def losses(self) -> Tensor:
        return self.arrays["losses"]

    @property
    def embeddings(self) -> Tensor:
        return self.arrays["embeddings"]

    def loss_state(self) -> dict[str, Tensor]:
        """State dict of the trained loss, e.g. its proxies."""
        return load_file(self.folder / "loss.safetensors")

    def network(self, name: str = "network", manifest: manifests.Manifest | None = None) -> backbones.EmbeddingNet:
        """The trained network, or another one that the algorithm saved under a name, in evaluation mode on the CPU.
        manifest: its images, where they are at hand."""
        network = inference.build_network(self.spec, manifest or batches.load_dataset(self.spec))
        inference.perturb(network, self.spec)
        below = network.state_dict() if self.spec.train_from else {}  # of a tail only what was trained is saved
        network.load_state_dict(below | load_file(self.folder / f"{name}.safetensors"))
        return network.eval()


def run(spec: RunSpec) -> RunResult:
    return run_all([spec])[0]


def run_all(
    specs: Sequence[RunSpec],
    *,
    jobs: int | None = None,
    record: Path | None = None,
    measure: Callable[[RunResult], None] = lambda run: None,
    rerun: bool = False,
) -> list[RunResult]:
    """Results in the order of the specs; what neither record nor cache has is trained, each distinct spec once.

    jobs: how many runs that ask for one thread are trained side by side; None: one on CUDA, else one per core that this
        process may use. Other runs follow one after the other.
    record: the file that finished runs are added to, one by one (`records.file_of`); a run that any file beside it has
        is taken from there. What is trained then goes by seeds, so that a piece of a study is a seed with all its
        methods. None: no record is read or written. A reader's own images and losses are never recorded.
    measure: called with each run before it is recorded, so that what tables need of its weights is on record by then. A
        run that another study recorded is trained again where something is asked that was not measured on it.
    rerun: what the store has is trained too, and appended; earlier lines stay.

    A run that fails does not stop the others: they are trained and stored, then one error lists the failures. It has
    the type of the first that is no divergence; FloatingPointError where all diverged. FullDisk ends all at once.
    """
    every = [(keys.of_identity(identity), identity, spec) for spec, identity in zip(specs, _identities(specs))]
    identities = {key: identity for key, identity, _ in every}
    of_key = {key: spec for key, _, spec in reversed(every)}  # of equal ones the first
    theirs = {key for key, spec in of_key.items() if manifests.is_own(spec.dataset) or spec.loss == OWN_LOSS}
    storable = {key: identity for key, identity in identities.items() if record and key not in theirs}
    served = {} if rerun else _recorded(storable, record)
    results = {key: _finished(key, of_key[key], *line, record=record) for key, line in served.items()}
    unmeasured = {key for key, run in results.items() if not run.stale and _asks_for_weights(measure, run)}
    wanted = [key for key in identities if key not in served or key in unmeasured]
    there = {key: cached(key) for key in wanted if folder_of(key).exists()}
    missing = [key for key in wanted if key not in there]
    if storable:
        missing.sort(key=lambda key: (of_key[key].seed, -(of_key[key].epochs or 0)))  # the longest first

    def keep(key: str) -> None:
        place, content = folder_of(key), there.get(key) or cached(key)
        there[key] = content
        if key in unmeasured:
            _refuse_another(results[key], content["rows"])
            measure(dataclasses.replace(results[key], place=place))
        elif key in storable and record:
            known = _recorded({key: identities[key]}, record).get(key)
            if known and not known[1] and not rerun:
                return  # another process was faster
            line = _with_classes(_line_of(of_key[key], content), of_key[key], place)
            measure(_finished(key, of_key[key], line, place=place, record=record))
            records.append(record, line)

    failures = {key: error for key in there.copy() if (error := scheduling.failure_of(functools.partial(keep, key)))}
    # not all at once into a GPU's memory, unless told to
    small = [key for key in missing if of_key[key].threads == 1 and (jobs or not torch.cuda.is_available())]
    workers = scheduling.workers_for(jobs, len(small))
    tasks = {key: functools.partial(train_into_cache, identities[key], of_key[key]) for key in missing}
    parallel = {key: tasks[key] for key in small} if workers > 1 else {}
    alone = {key: functools.partial(tasks[key], named(of_key[key])) for key in missing if key not in parallel}
    failures |= scheduling.do_all(parallel, alone, workers, keep, progress.reporter("runs trained", len(missing)))
    tried = {key: of_key[key] for key in identities if key in missing or key in failures}
    if failures and len(tried) == 1:
        raise next(iter(failures.values()))
    if failures:
        raise _failed(tried, failures) from next(iter(failures.values()))
    new = _recorded({key: identity for key, identity in storable.items() if key not in served}, record)
    for key in (key for key in identities if key not in served):
        line, stale = new.get(key) or (_line_of(of_key[key], there[key]), False)
        file = record if key in storable else None
        results[key] = _finished(key, of_key[key], line, stale, place=folder_of(key), record=file)
    return [dataclasses.replace(results[key], spec=spec, from_cache=key not in missing) for key, _, spec in every]


def train_into_cache(identity: dict[str, dict], spec: RunSpec, described: str | None = None) -> None:
    """Train a run if the cache does not have it; described: what a log calls it, None: no log. identity: of
    `keys.identity_of`, from the process that asked for the run: this one may see other threads."""
    key = keys.of_identity(identity)
    if folder_of(key).exists():  # another process was faster
        return
    checkpoint = cache_root() / "checkpoints" / f"{key}.pt"
    try:
        # a run may be asked for where nothing else needs gradients
        with threads(spec.threads), repeatable(), torch.enable_grad():
            outcome = loop.train(spec, checkpoint=checkpoint, progress=described)
        _store(identity, spec, outcome)
        checkpoint.unlink(missing_ok=True)  # no sooner: storing may fail
    except (RuntimeError, MemoryError) as error:  # on CPUs torch's allocator says it in words
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "allocate memory" not in str(error):
            raise
        traceback.clear_frames(error.__traceback__)  # they hold the run's tensors
        torch.cuda.empty_cache()
        raise MemoryError(
            f"out of memory ({str(error).partition('. ')[0]}); run fewer at once (`train --jobs 1`, fewer cores for "
            "`make`), lower batch_size or image_size, or on a GPU precision = 'bfloat16'"
        ) from None


def folder_of(key: str) -> Path:
    return cache_root() / "runs" / key


def _store(identity: dict[str, dict], spec: RunSpec, outcome: loop.Outcome) -> None:
    """Put what the training loop made of a spec into the cache."""
    with atomic_write(folder_of(keys.of_identity(identity))) as folder:
        folder.mkdir()
        curves = {"losses": outcome.losses} | {f"losses {name}": values for name, values in outcome.terms.items()}
        embeddings = {f"embeddings {name}".rstrip(): values for name, values in outcome.embeddings.items()}
        for name, tensors in (outcome.states | {"arrays": curves | embeddings}).items():
            save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / f"{name}.safetensors")
        content = identity | {
            "dataset": batches.load_dataset(spec).name,
            "rows": outcome.rows,
            "cost": outcome.cost,
            "made": sources.checkout() | {"device": keys.device_name(), "rounding": keys.rounding()},
        }
        (folder / "result.json").write_text(json.dumps(content, indent=1), encoding="utf8")
        write_checksums(folder)


def cached(key: str) -> dict:
    """What the cache says of a run that it has; ValueError names one that is damaged."""
    refuse_damaged(folder_of(key))
    return json.loads((folder_of(key) / "result.json").read_text(encoding="utf8"))


def forget(specs: Iterable[RunSpec]) -> None:
    """Remove the runs of these specs that are in the cache: those of a search are wanted for their scores only."""
    for folder in {folder_of(keys.key_of(spec)) for spec in specs}:
        if folder.exists():
            with temporary_folder(folder.parent) as discarded:
                folder.rename(discarded / folder.name)  # whole or not at all, also if interrupted


def _asks_for_weights(measure: Callable[[RunResult], None], run: RunResult) -> bool:
    """Whether `measure` asks something of a run of the record that was not measured on it yet."""
    try:
        measure(dataclasses.replace(run, measured_only=True))
    except records.NotMeasured:
        return True
    return False


def environments(specs: Sequence[RunSpec], file: Path) -> list[tuple[str, str] | None]:
    """Of each spec, the device and the numerics fingerprint of its line in the store; None where it has none."""
    there = _recorded(dict(enumerate(_identities(specs))), file)
    return [records.environment(there[number][0]) if number in there else None for number in range(len(specs))]


def _identities(specs: Sequence[RunSpec]) -> list[dict[str, dict]]:
    """What the keys are made of; own images are looked at once per call, because later they may have changed."""
    digests = functools.cache(keys.digest_of_data)
    return [keys.identity_of(spec, digests) for spec in specs]


def _recorded(identities: Mapping[Any, dict[str, dict]], file: Path | None) -> dict[Any, tuple[dict, bool]]:
    """The lines of runs in any file beside this one, and whether each is outdated; without those that it has not."""
    names = {key: records.name_of(identity["what"]) for key, identity in identities.items()}
    found = records.find(file.parent, [*dict.fromkeys(names.values())]) if file else {}
    return {key: found[name] for key, name in names.items() if name in found}


def _finished(key: str, spec: RunSpec, line: Mapping, stale: bool = False, **where: Any) -> RunResult:
    """A run from its line: that of the store, or `_line_of` what the cache has."""
    version = records.version_of(records.kind_of(line), records.code_of(line))
    numbers = (line["dataset"], line["rows"], line["cost"], line["made"])
    kept = line if records.SUM in line else None
    return RunResult(spec, key, line["run"], version, *numbers, line=kept, stale=stale, **where)


def _refuse_another(recorded: RunResult, rows: Iterable[Mapping]) -> None:
    """ValueError if a recorded run has other scores when it is trained again: on another device or under another
    rounding it is another network, and what is measured on it is not of the record."""
    then, now = (
        {(row["metric"], row.get("network")): row["value"] for row in each if row["selection"] == "last"}
        for each in (recorded.rows, rows)
    )
    if any(not abs(now.get(name, math.inf) - value) <= 1e-4 for name, value in then.items()):
        raise ValueError(
            f"{recorded.described}: trained again here, it has other scores than on record, where it was trained on "
            f"{recorded.made['device']}; measure it there, or `python -m experiments train --rerun` trains it anew"
        )


def _line_of(spec: RunSpec, content: Mapping) -> dict:
    """The line of a run from what the cache says of it, but for what its arrays tell."""
    what, where = content["what"], {name: content["where"][name] for name in ("versions", "machine", "threads")}
    labels = {name: getattr(spec, name) for name in LABELS}
    line = {"run": records.name_of(what), "described": named(spec), "labels": labels}
    line |= {name: what[name] for name in ("spec", "data", "weights")}
    line |= {"version": records.versions(records.kind_of(line))["version"]}  # of the present code
    line |= {name: content[name] for name in ("dataset", "rows", "cost")}
    return line | {"made": content["made"] | where | {"weights": what["weights"]}}


def _with_classes(line: dict, spec: RunSpec, place: Path) -> dict:
    """A line with its sha256 and the scores of each test class; none of the models of folds."""
    if spec.fold is not None:
        return records.summed(line | {"per_class": []})
    embeddings, manifest = load_file(place / "arrays.safetensors")["embeddings"], batches.load_dataset(spec)
    return records.summed(line | {"per_class": per_class(embeddings, manifest, manifest.indices("test"))})


def per_class(
    embeddings: Tensor, manifest: manifests.Manifest, indices: np.ndarray, among_all: bool = False
) -> list[list[float]]:
    """[class, queries, how many of them find their class first, their mean MAP@R] of each class of some images, whose
    embeddings (N, D) are given; queries without a relevant image are left out. among_all: as in `inference.searching`.
    """
    points, labels, searched = inference.searching(embeddings, manifest, indices, among_all)
    scores = retrieval.retrieval_per_query(points, labels, (1,), measures=("MAP@R",), **searched)
    rows = []
    for class_id in labels.unique().tolist():
        own = (labels == class_id) & (scores["relevant"] > 0)
        if queries := int(own.sum()):
            first, precision = scores["R@1"][own].sum().item(), scores["MAP@R"][own].mean().item()
            rows.append([class_id, queries, int(first), float(f"{precision:.8g}")])
    return rows


def _failed(missing: Mapping[str, RunSpec], failures: Mapping[str, Exception]) -> Exception:
    failures = {key: failures[key] for key in missing if key in failures}  # not as they happened to end
    errors = list(failures.values())
    worst = next((error for error in errors if not isinstance(error, FloatingPointError)), errors[0])
    known = (FloatingPointError, MemoryError, ValueError, OSError)
    kind = next((base for base in known if isinstance(worst, base)), RuntimeError)
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
