"""Search of a method's hyperparameters on validation classes; the test set has no part.

The spec as it stands is trial 0; Bayesian proposals (TPE), each a function of the trials before it, or a grid follow.
The constants are the same for every method. What runs score is kept in the cache, where an interrupted
search finds it again; only a complete search becomes a file or replaces one.
"""

import functools
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.files import cache_root, locked, read_signed, signed, write_text
from experiments.training import keys, protocols, records, runs, sources
from experiments.training.builders import defaults
from experiments.training.spec import RunSpec

TRIALS = 16  # of every method, the default among them, on the first fold
FINALISTS = 4  # so many of them on the other folds too
STARTUP = 6  # trials before proposals follow the better ones, the default and five at random
SCORE = "MAP@R"  # on validation classes, by which a trial is judged
Search = dict[str, Any]  # what a search's file holds, see `search`


class Range(NamedTuple):
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


def standing(spec: RunSpec, ranges: Mapping[str, Range]) -> dict[str, float]:
    """The searched hyperparameters as a spec has them, but for what is no number or lies outside its range."""
    known = defaults(spec.loss) | dict(spec.loss_options)
    known |= {"lr": spec.lr, "loss_lr": max(spec.loss_lr.values(), default=None)}
    numbers = {name: float(known[name]) for name in ranges if isinstance(known.get(name), int | float)}
    return {name: value for name, value in numbers.items() if ranges[name].low <= value <= ranges[name].high}


def search(
    spec: RunSpec,
    ranges: Mapping[str, Range],
    path: Path,
    models: Callable[[RunSpec], list[RunSpec]] = protocols.on_thirds,
    *,
    trials: int = TRIALS,
    finalists: int | None = FINALISTS,
    grid: Sequence[Mapping[str, float]] = (),
    metric: str = SCORE,
    fixed: Collection[str] = (),
    about: Mapping[str, Any] | None = None,
    again: bool = False,
) -> Search:
    """The search in a file: found there, unless `again`, or made now. One over a grid that has grown is continued: its
    first trials then say what "made" them. ValueError: the file was edited or damaged, or begins with other trials.

    Args:
        spec: trial 0; what is varied are its `ranges`, see `applied`.
        models: a spec -> the runs that judge it, one per fold.
        finalists: so many trials, the best on the first fold, are scored on the others too; None: all, at once.
        grid: what the trials after the first one change, in the place of proposals.
        metric: of retrieval, on validation classes.
        about: further entries of the file, by which it is found.

    Returns what the file holds: of each of the "trials" its "options", "scores" (fractions, a fold each, 0 where it
    diverged) and all "metrics"; "found", see `_found`; "begun", what trial 0 depends on but the machine."""
    with locked(path):  # of two processes that search for one file the second waits, and finds it there
        known = read(path) if path.exists() and not again else {"trials": []}
        if known["trials"] and not (grid and len(known["trials"]) < trials):
            return known
        judged, given = models(spec), [standing(spec, ranges), *grid]
        first = len(judged) if finalists is None else 1
        tried: list[dict[str, Any]] = [{"made": known["made"]} | trial for trial in known["trials"]]
        what = keys.identity_of(judged[0])["what"]
        version = records.versions(records.kind_of(what))["version"]
        begun = {
            "counts": {"trials": trials, "on folds": first, "finalists": finalists or 0, "folds": len(judged)},
            "metric": metric,
            "ranges": {name: bounds._asdict() for name, bounds in ranges.items()},
            "fixed": sorted(fixed),
            "begun": {name: what[name] for name in ("spec", "data", "weights")} | {"version": version},
            "made": sources.checkout() | {"versions": sources.versions(), "device": keys.device_name()},
        }
        if tried:
            its_spec = {name: value for name, value in known["begun"]["spec"].items() if name != "threads"}
            same = records.digest(known["begun"] | {"spec": its_spec}) == records.digest(begun["begun"])
            if not same or any(trial["options"] != options for trial, options in zip(tried, given)):
                raise ValueError(f"{path} begins with other trials or another code; `--again` replaces it")

        def score(trial: dict[str, Any], folds: slice) -> None:
            metrics = validation_metrics(models(applied(spec, trial["options"], fixed))[folds])
            trial["metrics"] += metrics
            for each in metrics:  # a trial counts with its best evaluation of those that are kept
                scores = [value for name, value in each.items() if name.partition(" at ")[0] == metric]
                trial["scores"].append(max(scores, default=0.0))  # one that diverged has none

        for number in range(len(tried), trials):
            options = dict(given[number]) if number < len(given) else _proposal(tried, ranges)
            tried.append({"options": options, "scores": [], "metrics": []})
            score(tried[-1], slice(first))
        for trial in sorted(tried, key=lambda trial: -statistics.fmean(trial["scores"]))[: finalists or 0]:
            for fold in range(first, len(judged)):
                score(trial, slice(fold, fold + 1))
        found = _found(tried, first, metric, spec.epochs or 0)
        write_text(path, signed({**(about or {}), **begun, "trials": tried, "found": found}))
        return read(path)


def _proposal(tried: Sequence[Mapping], ranges: Mapping[str, Range]) -> dict[str, float]:
    """What is tried next, a function of the trials before it, with four digits."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    bounds: dict[str, Any] = {name: optuna.distributions.FloatDistribution(*ranges[name]) for name in ranges}
    sampler = optuna.samplers.TPESampler(seed=protocols.TUNING_SEED + len(tried), n_startup_trials=STARTUP)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for earlier in tried:
        known, value = {name: bounds[name] for name in earlier["options"]}, statistics.fmean(earlier["scores"])
        study.add_trial(optuna.trial.create_trial(params=earlier["options"], distributions=known, value=value))
    return {name: float(f"{value:.4g}") for name, value in study.ask(bounds).params.items()}


def validation_metrics(models: list[RunSpec]) -> list[dict[str, float]]:
    """The validation metrics of each run, SCORE and R@1 also "at step" so many where evaluations are kept; SCORE alone,
    of 0, for all if one diverged. The cache keeps them and not the runs: 50 trials of 4 networks are 10 GB."""

    def trained() -> list[dict[str, float]]:
        metrics = []
        try:
            for run in runs.run_all(models):
                selection = "val_best" if run.spec.restore_best else "last"
                rows = [row for row in run.rows if row["metric"].startswith("val ") and "network" not in row]
                metrics.append({row["metric"][4:]: row["value"] for row in rows if row["selection"] == selection})
                curve = [row for row in rows if row["selection"] == "every" and row["metric"][4:] in (SCORE, "R@1")]
                metrics[-1] |= {f"{row['metric'][4:]} at step {row['step']}": row["value"] for row in curve}
        except FloatingPointError:  # others may have finished before it
            metrics = [{SCORE: 0.0}] * len(models)
        runs.forget(models)
        return metrics

    return records.cached(["validation metrics", *map(keys.key_of, models)], trained)


def _found(tried: Sequence[Mapping], first: int, metric: str, epochs: int) -> dict[str, Any]:
    """The "trial" with the best mean over all folds, its "options", with the epochs after which its curve is highest,
    and that mean, "score"; and of the first folds, where all trials were scored, "default", "median" and "best"."""
    most = max(len(trial["scores"]) for trial in tried)
    means = {n: statistics.fmean(trial["scores"]) for n, trial in enumerate(tried) if len(trial["scores"]) == most}
    winner = max(means, key=lambda number: means[number])
    options, curve = tried[winner]["options"], curve_of(tried[winner], metric)
    if curve and (highest := round(epochs * max(curve, key=lambda step: curve[step]) / max(curve))):  # first of equals
        options = options | {"epochs": highest}
    on_first = [statistics.fmean(trial["scores"][:first]) for trial in tried]
    shown = {"default": on_first[0], "median": statistics.median(on_first), "best": max(on_first)}
    return {"trial": winner, "options": options, "score": means[winner]} | shown


def curve_of(trial: Mapping, metric: str) -> dict[int, float]:
    """Step -> score on the first fold, of the evaluations that a trial kept."""
    at = f"{metric} at step "
    return {int(name.removeprefix(at)): value for name, value in trial["metrics"][0].items() if name.startswith(at)}


def by_protocol(spec: RunSpec, ranges: Mapping[str, Range], name: str, trials: int, **expansion: Any) -> Search:
    """The search of a protocol, every trial on all folds, kept in the cache; expansion: as in `protocols.expand`."""
    spec = spec.replace(seed=protocols.TUNING_SEED)
    models: Callable[[RunSpec], list[RunSpec]] = functools.partial(protocols.expand, name=name, **expansion)
    asked = records.digest([*map(keys.key_of, models(spec)), trials, ranges])[:24]
    return search(spec, ranges, cache_root() / "searches" / f"{asked}.json", models, trials=trials, finalists=None)


def best_of(spec: RunSpec, record: Search) -> RunSpec:
    return applied(spec, record["found"]["options"], record["fixed"])


@records.once_per_state
def read(path: Path) -> Search:
    """A search's file; ValueError names one that is not as it was written."""
    return read_signed(path, "take it from git, or remove it to search again")


def folder(profile: str) -> Path:
    """Where the committed searches of a profile lie, beside its recorded runs."""
    return records.folder() / profile / "searches"
