"""Search of a method's hyperparameters on validation classes. What is varied is handed in; the test set has no part.

The spec as it stands is trial 0; Bayesian proposals (TPE), each a function of the trials before it, or a grid follow.
The constants are those of the search that every method gets alike; a protocol has its own. What runs score is kept in
the cache, where an interrupted search finds it again. Only a complete search becomes a file or replaces one.
"""

import functools
import inspect
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.files import cache_root, locked, read_signed, signed, write_text
from experiments.training import cache, keys, protocols, records, runs, sources
from experiments.training.builders import loss_builder
from experiments.training.spec import RunSpec

TRIALS = 16  # of every method, the default among them, on the first fold
FINALISTS = 4  # so many of them on the other folds too
FOLDS = 3  # disjoint parts of the training classes, each of which validates once
STARTUP = 6  # trials before proposals follow the better ones, the default and five at random
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


def applied(spec: RunSpec, options: Mapping[str, float], fixed: Collection[str] = ()) -> RunSpec:
    """A spec with other options of its loss. Among them "lr" stands for the network's learning rate, with which the
    rates of the head and of the loss's parameters change, but for those `fixed`; "loss_lr" for the highest rate of the
    loss's parameters, to which the others keep their ratio."""
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
    """The searched hyperparameters as a spec has them, but for what is no number or lies outside its range."""
    known = defaults(spec.loss) | dict(spec.loss_options)
    known |= {"lr": spec.lr, "loss_lr": max(spec.loss_lr.values(), default=None)}
    numbers = {name: known[name] for name in ranges if isinstance(known.get(name), int | float)}
    return {n: float(value) for n, value in numbers.items() if ranges[n].low <= value <= ranges[n].high}


def on_thirds(spec: RunSpec, *, curves: bool = False) -> list[RunSpec]:
    """The runs that judge a spec in the search of every method, one per fold, scored at the last step, or at the best
    evaluation if the spec restores that. curves: the scores of all evaluations are kept."""
    unused = spec.keep_history and not (spec.restore_best or spec.patience or curves)
    looks = {"keep_history": curves} | ({"eval_every": None, "eval_every_epochs": None} if unused else {})
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
    first: int = 1,
    grid: Sequence[Mapping[str, float]] = (),
    metric: str = SCORE,
    fixed: Collection[str] = (),
    about: Mapping[str, Any] | None = None,
    again: bool = False,
) -> Search:
    """The search in a file: found complete, or made now; a file with fewer trials of a grid is continued.

    Args:
        spec: trial 0; what is varied are its `ranges`, see `applied`.
        models: a spec -> the runs that judge it, one per fold.
        first: every trial is scored on so many folds, the best `finalists` on the others as well.
        grid: what the trials after the first one change, in the place of proposals.
        metric: of retrieval, on validation classes.
        about: further entries of the file, by which it is found.
        again: also where the file is complete.

    Returns:
        what the file holds, among it of each of the "trials" its "options", "scores" (fractions, a fold each, 0 where
        training diverged) and all "metrics"; "found", see `_found`; and "begun", all that the scores of trial 0 depend
        on but the machine.

    Raises ValueError for no trials, for a file that was edited or damaged, and for trials of another device.
    """
    if trials < 1:
        raise ValueError(f"trials must be positive, got {trials}")
    with locked(path):  # of two processes that search for one file the second waits, and finds it complete
        known = read(path) if path.exists() and not again else None
        if known and len(known["trials"]) >= trials:
            return known
        if known and (device := known["made"]["device"]) != keys.device_name():
            raise ValueError(
                f"{path} has {len(known['trials'])} of {trials} trials, of {device}; go on there, or use `--again`"
            )
        judged = models(spec)
        code = records.versions(records.kind(spec.loss, spec.algorithm, spec.train_from))["version"]
        scored = {name: value for name, value in keys.identity_of(judged[0])["what"].items() if name != "code"}
        begun = {
            "counts": {"trials": trials, "on folds": first, "finalists": finalists, "folds": len(judged)},
            "metric": metric,
            "ranges": {name: asdict(bounds) for name, bounds in ranges.items()},
            "fixed": sorted(fixed),
            "begun": scored | {"version": code},
            "made": sources.checkout() | {"versions": sources.versions(), "device": keys.device_name()},
        }
        tried: list[dict[str, Any]] = [*known["trials"]] if known else []

        def score(trial: dict[str, Any], folds: slice) -> None:
            metrics = validation_metrics(models(applied(spec, trial["options"], fixed))[folds])
            # a trial counts with its best evaluation of those that are kept; one that diverged has none
            trial["scores"] += [max([each.get(metric, 0.0), *_curve(each, metric).values()]) for each in metrics]
            trial["metrics"] += metrics

        while len(tried) < trials:
            options = standing(spec, ranges)
            if tried:
                options = dict(grid[len(tried) - 1]) if grid else _proposal(tried, ranges)
            tried.append({"options": options, "scores": [], "metrics": []})
            score(tried[-1], slice(first))
        for trial in sorted(tried, key=lambda trial: -statistics.fmean(trial["scores"]))[:finalists]:
            for fold in range(first, len(judged)):
                score(trial, slice(fold, fold + 1))
        found = _found(tried, first)
        curve = _curve(tried[found["trial"]]["metrics"][0], metric)  # of equal evaluations the first is the best
        if curve and (epochs := round((spec.epochs or 0) * max(curve, key=lambda step: curve[step]) / max(curve))):
            found["options"] = found["options"] | {"epochs": epochs}
        write_text(path, signed({**(about or {}), **begun, "trials": tried, "found": found}))
        return read(path)


def _proposal(tried: Sequence[Mapping], ranges: Mapping[str, Range]) -> dict[str, float]:
    """What is tried next, a function of the trials before it, with four digits."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    bounds: dict[str, Any] = {
        name: optuna.distributions.FloatDistribution(**asdict(bounds)) for name, bounds in ranges.items()
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
    """The validation metrics of each run; SCORE alone, of 0, for all if one of them diverged. The cache keeps them and
    not the runs: 50 trials of 4 networks are 10 GB."""

    def trained() -> list[dict[str, float]]:
        metrics = []
        try:
            for run in runs.run_all(models):
                selection = "val_best" if run.spec.restore_best else "last"
                rows = [row for row in run.rows if row["metric"].startswith("val ") and "network" not in row]
                metrics.append({row["metric"][4:]: row["value"] for row in rows if row["selection"] == selection})
                curve = [row for row in rows if row["selection"] == "every" and row["metric"][4:] in (SCORE, "R@1")]
                metrics[-1] |= {f"{row['metric'][4:]} at step {row['step']}": row["value"] for row in curve}
        except FloatingPointError:  # one diverged; others may have finished before it
            metrics = [{SCORE: 0.0}] * len(models)
        cache.forget(models)
        return metrics

    return records.cached(["validation metrics", *map(keys.key_of, models)], trained)


def _found(tried: Sequence[Mapping], first: int) -> dict[str, Any]:
    """The "trial" with the best mean over all folds, its "options" and that mean, "score"; and of the first folds,
    where all trials were scored, "default", "median" and "best"."""
    most = max(len(trial["scores"]) for trial in tried)
    means = {n: statistics.fmean(trial["scores"]) for n, trial in enumerate(tried) if len(trial["scores"]) == most}
    winner = max(means, key=lambda number: means[number])
    on_first = [statistics.fmean(trial["scores"][:first]) for trial in tried]
    shown = {"default": on_first[0], "median": statistics.median(on_first), "best": max(on_first)}
    return {"trial": winner, "options": tried[winner]["options"], "score": means[winner]} | shown


def _curve(metrics: Mapping[str, float], metric: str) -> dict[int, float]:
    """A metric by the step of its evaluation, of the metrics of a run that kept its curve."""
    at = f"{metric} at step "
    return {int(name.removeprefix(at)): value for name, value in metrics.items() if name.startswith(at)}


def by_protocol(spec: RunSpec, ranges: Mapping[str, Range], name: str, trials: int, **expansion: Any) -> Search:
    """The search of a protocol, every trial on all its folds, kept in the cache; expansion: as in `protocols.expand`.
    ValueError: no trials, or the protocol has no classes to validate on."""
    protocols.with_folds(name)

    def models(tried: RunSpec) -> list[RunSpec]:
        return protocols.expand(tried.replace(seed=protocols.TUNING_SEED), name, **expansion)

    asked = [*map(keys.key_of, judged := models(spec)), trials, {key: asdict(bounds) for key, bounds in ranges.items()}]
    path = cache_root() / "searches" / f"{records.digest(asked)[:24]}.json"
    return search(spec, ranges, path, models, trials=trials, finalists=0, first=len(judged))


def best_of(spec: RunSpec, record: Search) -> RunSpec:
    return applied(spec, record["found"]["options"], record["fixed"])


def at_an_end(record: Search) -> list[str]:
    """The hyperparameters whose chosen value lies within 5 % of an end of its range: the best may lie beyond it."""
    chosen, ends = record["found"]["options"], []
    for name in [name for name in chosen if name in record["ranges"]]:
        low, high, log = record["ranges"][name].values()
        low, high, value = map(math.log, (low, high, chosen[name])) if log else (low, high, chosen[name])
        if not 0.05 < (value - low) / (high - low) < 0.95:
            ends.append(name)
    return ends


def read(path: Path) -> Search:
    """A search's file; ValueError names one that is not as it was written."""
    there = path.stat()
    return _read_as(path, there.st_ino, there.st_mtime_ns)


@functools.lru_cache(1000)
def _read_as(path: Path, inode: int, written: int) -> Search:
    return read_signed(path, "take it from git, or remove it to search again")


def folder(profile: str) -> Path:
    """Where the committed searches of a profile lie, beside its recorded runs."""
    return records.folder() / profile / "searches"


def complete(where: Path) -> list[tuple[Path, Search]]:
    """The searches of a folder, by name; ValueError as in `read`."""
    return [(path, read(path)) for path in sorted(where.glob("*.json"))]
