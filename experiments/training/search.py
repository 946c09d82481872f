"""Search of a method's hyperparameters on validation classes. What is varied is handed in; the test set has no part.

The spec as it stands is trial 0. Bayesian proposals (TPE) follow, each a function of the trials before it. Where a
trial is scored on some of the folds only, the best go on to the others. The constants here are those of the search that
every method gets alike; a protocol has its own.

What a run scores is written to `<name>.unfinished.json`, from which an interrupted search goes on, on any machine. Only
a complete search replaces a complete one. The runs themselves leave the cache: they are wanted for their scores.
"""

import copy
import functools
import inspect
import json
import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.files import cache_root, find_repository, locked, signed, write_text
from experiments.training import cache, keys, protocols, records, runs, sources
from experiments.training.builders import loss_builder
from experiments.training.spec import RunSpec

TRIALS = 16  # of every method, the default among them, on the first fold
FINALISTS = 4  # so many of them on the other folds too
FOLDS = 3  # disjoint parts of the training classes, each of which validates once
STARTUP = 6  # trials before proposals follow the better ones, the default and five at random
UNFINISHED = ".unfinished.json"
SCORE = "MAP@R"  # on validation classes, by which a trial is judged

Search = dict[str, Any]  # what a search's file holds, see `search`


@dataclass(frozen=True)
class Range:
    """Bounds of a hyperparameter; `log` searches its logarithm."""

    low: float
    high: float
    log: bool = False


# The network's learning rate, the same range for every method: a decade and more on both sides of what profiles give
NETWORK_LR = {"lr": Range(1e-5, 3e-3, log=True)}


# --- what a proposal changes ------------------------------------------------------------------------------------------


def applied(spec: RunSpec, options: Mapping[str, float], fixed: Collection[str] = ()) -> RunSpec:
    """A spec with other hyperparameters.

    Args:
        options: of the loss, by name; "lr" stands for the network's learning rate, by whose change the rates of the
            head and of the loss's parameters are multiplied; "loss_lr" for the highest rate of the loss's parameters,
            to which the others keep their ratio.
        fixed: parameters of the loss whose rates do not follow the network's.
    """
    of_loss = {name: value for name, value in options.items() if name not in ("lr", "loss_lr")}
    rates, changes = dict(spec.loss_lr), {}
    if "lr" in options:
        factor = options["lr"] / spec.lr
        changes = {"lr": options["lr"], "head_lr": spec.head_lr and times(spec.head_lr, factor)}
        rates = {name: rate if name in fixed else times(rate, factor) for name, rate in rates.items()}
    if "loss_lr" in options:
        rates = rates or {"*": 1.0}
        rates = {name: options["loss_lr"] * (rate / max(rates.values())) for name, rate in rates.items()}
    return spec.replace(loss_options={**spec.loss_options, **of_loss}, loss_lr=rates, **changes)


def times(rate: float, factor: float) -> float:
    """A learning rate that follows another, in six digits: specs that mean the same are the same."""
    return float(f"{rate * factor:.6g}")


def defaults(loss: str | None) -> dict[str, Any]:
    """The options of a loss that have a default, with it."""
    options = inspect.signature(loss_builder(loss)).parameters.values() if loss else ()
    return {option.name: option.default for option in options if option.default is not inspect.Parameter.empty}


def standing(spec: RunSpec, ranges: Mapping[str, Range]) -> dict[str, float]:
    """The searched hyperparameters as a spec has them, but for what is no number or lies outside its range: from that
    a search learns nothing."""
    known = defaults(spec.loss) | dict(spec.loss_options) | {"lr": spec.lr}
    known["loss_lr"] = max(spec.loss_lr.values(), default=None)
    return {
        name: float(known[name])
        for name, bounds in ranges.items()
        if isinstance(known.get(name), int | float) and bounds.low <= known[name] <= bounds.high
    }


# --- a search ---------------------------------------------------------------------------------------------------------


def on_thirds(spec: RunSpec) -> list[RunSpec]:
    """The runs that judge a spec in the search of every method, one per fold, with one thread each.

    They are scored where the spec's own runs are: at the last step, or at the best evaluation if that is restored.
    """
    unused = spec.keep_history and not (spec.restore_best or spec.patience)
    looks = {"keep_history": False} | ({"eval_every": None, "eval_every_epochs": None} if unused else {})
    how = {"seed": protocols.TUNING_SEED, "threads": 1, "folds": FOLDS} | looks
    return [spec.replace(fold=fold, **how) for fold in range(FOLDS)]


def search(
    spec: RunSpec,
    ranges: Mapping[str, Range],
    path: Path,
    models: Callable[[RunSpec], list[RunSpec]] = on_thirds,
    *,
    trials: int = TRIALS,
    finalists: int = FINALISTS,
    first: int | None = 1,
    fixed: Collection[str] = (),
    about: Mapping[str, Any] | None = None,
    again: bool = False,
) -> Search:
    """The search in a file: found complete, or gone on with, or begun.

    Args:
        spec: trial 0 as it stands; its seed has no part.
        ranges: what is varied, see `applied`.
        models: a spec -> the runs that judge it, one per fold.
        first: every trial is scored on so many folds, the best `finalists` on the others as well; None: on all.
        fixed: as in `applied`.
        about: further entries of the file, by which it is found.
        again: begin anew, or go on with what was begun anew, where the file is complete.

    Returns:
        what the file holds, beside `about`: "ranges", "trials" in their order with "options", "scores" (validation
        MAP@R as fractions, a fold each, 0 where training diverged) and "metrics" (all others, of searches since they
        are kept), "found" (see `_found`), "counts", "begun" (all that the scores of trial 0 depend on but the machine),
        "made" (commit, versions, device) and "sha256" of all others.

    Raises:
        ValueError: no trials; the file was edited or damaged; a search was begun with another spec, other images, code
            or ranges.
    """
    if trials < 1:
        raise ValueError(f"trials must be positive, got {trials}")
    if path.exists() and not again:
        return read(path)
    with locked(path):  # of two processes that search for one file the second waits, and finds it complete
        if path.exists() and not again:
            return read(path)
        unfinished, judged = unfinished_of(path), models(spec)
        on_folds = first or len(judged)
        counts = {"trials": trials, "on folds": on_folds, "finalists": finalists, "folds": len(judged)}
        record = {
            **(about or {}),
            "counts": counts,
            "ranges": {name: asdict(bounds) for name, bounds in ranges.items()},
            "fixed": sorted(fixed),
            "begun": _begun(judged[0]),
            "made": sources.checkout() | {"versions": sources.versions(), "device": keys.device_name()},
            "trials": [],
        }
        if unfinished.exists():
            now, record = json.loads(json.dumps(record)), copy.deepcopy(read(unfinished))
            flat, then = now | now["begun"], record | record["begun"]
            if differs := [name for name in flat if name not in IN_PROGRESS and then.get(name) != flat[name]]:
                raise ValueError(
                    f"{unfinished} was begun with another {' and '.join(differs)} than there is now; remove it to "
                    "begin anew"
                )
        tried = record["trials"]

        def score(trial: Search, folds: slice) -> None:
            metrics = validation_metrics(models(applied(spec, trial["options"], fixed))[folds])
            trial["scores"] += [each[SCORE] for each in metrics]
            trial["metrics"] = trial.get("metrics", []) + metrics
            write_text(unfinished, signed(record))

        while len(tried) < trials:
            tried.append({"options": _proposal(tried, ranges) if tried else standing(spec, ranges), "scores": []})
            score(tried[-1], slice(on_folds))
        for trial in sorted(tried, key=lambda trial: -_score(trial, on_folds))[:finalists]:
            for fold in range(len(trial["scores"]), len(judged)):
                score(trial, slice(fold, fold + 1))
        record["found"] = _found(tried, on_folds)
        write_text(path, signed(record))
        unfinished.unlink(missing_ok=True)
        return read(path)


IN_PROGRESS = ("begun", "made", "trials")  # may differ between two parts of one search; of "begun" each entry counts


def _begun(spec: RunSpec) -> Search:
    """All that the scores of a spec depend on but the machine: spec, data, weights, and the version of its code;
    committed searches of before have a hash of the code, `source`, instead."""
    what = {name: value for name, value in keys.identity_of(spec)["what"].items() if name != "code"}
    return what | {"version": records.versions(records.kind(spec.loss, spec.algorithm, spec.train_from))["version"]}


def _proposal(tried: Sequence[Mapping], ranges: Mapping[str, Range]) -> dict[str, float]:
    """What is tried next, a function of the trials before it, with four digits, as files and readers keep them."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    bounds: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.FloatDistribution(r.low, r.high, log=r.log) for name, r in ranges.items()
    }
    sampler = optuna.samplers.TPESampler(seed=protocols.TUNING_SEED + len(tried), n_startup_trials=STARTUP)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for earlier in tried:
        known = {name: bounds[name] for name in earlier["options"]}
        value = statistics.fmean(earlier["scores"])
        study.add_trial(optuna.trial.create_trial(params=earlier["options"], distributions=known, value=value))
    trial = study.ask(bounds)
    return {name: float(f"{trial.params[name]:.4g}") for name in ranges}


def validation_metrics(models: list[RunSpec]) -> list[dict[str, float]]:
    """The validation metrics of each run; SCORE alone, of 0, for all if one of them diverged. They leave the cache."""
    metrics = []
    try:
        for run in runs.run_all(models):
            selection = "val_best" if run.spec.restore_best else "last"
            rows = [row for row in run.rows if row["selection"] == selection and "network" not in row]
            metrics.append({row["metric"][4:]: row["value"] for row in rows if row["metric"].startswith("val ")})
    except FloatingPointError:  # one diverged; others may have finished before it
        metrics = [{SCORE: 0.0}] * len(models)
    cache.forget(models)  # 50 trials of 4 networks are 10 GB
    return metrics


def _found(tried: Sequence[Mapping], first: int | None) -> dict[str, Any]:
    """What came out: "trial", the number of the winner, which has the best mean over all folds, with its "options" and
    that mean, "score"; and on the first folds, where all trials were scored, "default", "median" and "best"."""
    most = max(len(trial["scores"]) for trial in tried)
    means = {n: statistics.fmean(trial["scores"]) for n, trial in enumerate(tried) if len(trial["scores"]) == most}
    winner = max(means, key=lambda number: means[number])
    on_first = [_score(trial, first) for trial in tried]
    shown = {"default": on_first[0], "median": statistics.median(on_first), "best": max(on_first)}
    return {"trial": winner, "options": tried[winner]["options"], "score": means[winner]} | shown


def _score(trial: Mapping, first: int | None) -> float:
    """The mean over the folds on which every trial is scored."""
    return statistics.fmean(trial["scores"][:first])


# --- a protocol's own search ------------------------------------------------------------------------------------------


def by_protocol(
    spec: RunSpec,
    ranges: Mapping[str, Range],
    name: str,
    trials: int,
    *,
    published: bool = False,
    keep: Collection[str] = (),
) -> Search:
    """The search of a protocol, every trial on all its folds, kept in the cache; published, keep: as in
    `protocols.expand`. ValueError: no trials, or the protocol has no classes to validate on."""

    def models(tried: RunSpec) -> list[RunSpec]:
        return protocols.validated(tried.replace(seed=protocols.TUNING_SEED), name, published=published, keep=keep)

    identity = [*map(keys.key_of, models(spec)), trials, {key: asdict(bounds) for key, bounds in ranges.items()}]
    path = cache_root() / "searches" / f"{records.digest(identity)[:24]}.json"
    return search(spec, ranges, path, models, trials=trials, finalists=0, first=None)


def best_of(spec: RunSpec, record: Search) -> RunSpec:
    """A spec with what a search found."""
    return applied(spec, record["found"]["options"], record["fixed"])


def at_an_end(record: Search) -> list[str]:
    """The hyperparameters whose chosen value lies within 5 % of an end of its range: the best may lie beyond it."""
    places = {}
    for name, value in record["found"]["options"].items():
        low, high, log = record["ranges"][name].values()
        low, high, value = map(math.log, (low, high, value)) if log else (low, high, value)
        places[name] = (value - low) / (high - low)
    return [name for name, place in places.items() if not 0.05 < place < 0.95]


# --- files ------------------------------------------------------------------------------------------------------------


def read(path: Path) -> Search:
    """A search's file; ValueError names one that is not as it was written."""
    there = path.stat()
    return _read_as(path, there.st_ino, there.st_mtime_ns)


@functools.lru_cache(1000)
def _read_as(path: Path, inode: int, written: int) -> Search:
    remedy = "take it from git, or remove it to search again"
    try:
        text = path.read_text(encoding="utf8")  # once: a search in progress replaces its file
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is no complete JSON file ({error}); {remedy}") from error
    if not isinstance(content, dict) or signed(content) != text:
        raise ValueError(f"{path} is not what was written: its sha256 is not the one that it holds; {remedy}")
    return content


def unfinished_of(path: Path) -> Path:
    """The file of a search in progress that will be at `path` when it is complete."""
    return path.with_name(path.name.removesuffix(".json") + UNFINISHED)


def folder(profile: str, root: Path | None = None) -> Path | None:
    """Where the committed searches of a profile lie, beside its recorded runs; None outside a repository.

    root: the folder of profiles, default `records.folder`.
    """
    return (root or records.folder()) / profile / "searches" if find_repository() else None


def complete(where: Path | None) -> Iterator[tuple[Path, Search]]:
    """The complete searches of a folder, by name; ValueError as in `read`."""
    for path in sorted(where.glob("*.json") if where else ()):
        if not path.name.endswith(UNFINISHED):
            yield path, read(path)
