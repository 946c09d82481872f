"""Bayesian search of a method's hyperparameters on validation classes; the ranges are handed in."""

import hashlib
import itertools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from dmlrepro.files import cache_root, replacing, set_aside
from dmlrepro.training import protocols, runs
from dmlrepro.training.spec import RunSpec


@dataclass(frozen=True)
class Range:
    """Bounds of a hyperparameter; `log` searches its logarithm."""

    low: float
    high: float
    log: bool = False


def search(
    spec: RunSpec,
    ranges: Mapping[str, Range],
    name: str = "mlrc",
    *,
    trials: int | None = None,
    published: bool = False,
    keep: Collection[str] = (),
) -> tuple[RunSpec, list[dict]]:
    """Bayesian search (TPE) of a method's hyperparameters, by validation MAP@R averaged over the folds.

    The test set is never looked at: a trial counts only the rows of the held-out classes. Trials use TUNING_SEED.
    Finished trials are kept in a journal, and each trial's proposal is a function of those before it, so an interrupted
    search continues as if it had not been; a finished one returns at once.

    Args:
        ranges: one for each option of the loss that is searched; "loss_lr" stands for the highest learning rate of
            its parameters.
        trials: how many are tried; None: as many as the protocol says.
        published, keep: as in `expand`.

    Returns:
        The spec with the best hyperparameters, and one row per trial: its hyperparameters and `val MAP@R`, 0 for a
        trial that diverged.

    Raises:
        ValueError: the protocol has no classes to validate on.
    """
    import optuna
    import optuna.storages.journal

    protocol = protocols.with_folds(name)
    if trials is not None and trials < 1:
        raise ValueError(f"trials must be positive, got {trials}")

    def proposal(options: Mapping[str, float]) -> RunSpec:
        options, rates = dict(options), spec.loss_lr
        if "loss_lr" in options:
            highest, rates = options.pop("loss_lr"), rates or {"*": 1.0}
            rates = {parameter: highest * (rate / max(rates.values())) for parameter, rate in rates.items()}
        return spec.replace(loss_options={**spec.loss_options, **options}, loss_lr=rates)

    def models(options: Mapping[str, float]) -> list[RunSpec]:
        tried = proposal(options).replace(seed=protocols.TUNING_SEED)
        return protocols.validated(tried, name, published=published, keep=keep)

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    bounds = {option: (r.low, r.high, r.log) for option, r in ranges.items()}
    identity = [runs.key_of(model) for model in models({})] + [bounds]
    journal = journal_of(hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24])
    keep_whole_lines(journal)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))
    study = optuna.create_study(storage=storage, study_name="search", direction="maximize", load_if_exists=True)

    def complete() -> list:
        return study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))

    while (number := len(complete())) < (trials or protocol.trials):
        # without constant_liar: a trial that was interrupted has no part in later proposals
        study.sampler = optuna.samplers.TPESampler(seed=protocols.TUNING_SEED + number, constant_liar=False)
        trial = study.ask()
        options = {option: trial.suggest_float(option, r.low, r.high, log=r.log) for option, r in ranges.items()}
        study.tell(trial, validation_score(models(options)))
    rows = [trial.params | {"val MAP@R": trial.value} for trial in complete()[: trials or protocol.trials]]
    best = max(rows, key=lambda row: row["val MAP@R"])
    return proposal({option: best[option] for option in ranges}), rows


def journal_of(name: str) -> Path:
    """The file in which the trials of a search are kept."""
    folder = cache_root() / "searches"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.journal"


def keep_whole_lines(journal: Path) -> None:
    """Cut a journal before its first damaged line: the trials before it stay, as later proposals follow from them."""
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    whole = list(itertools.takewhile(_is_record, lines))
    if len(whole) < len(lines):
        set_aside(journal, f"line {len(whole) + 1} is no complete record")
        with replacing(journal) as temporary:
            temporary.write_bytes(b"".join(whole))


def _is_record(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False


def validation_score(models: list[RunSpec]) -> float:
    """Mean validation MAP@R of the models of one trial, 0 if one of them diverged. They leave the cache again."""
    try:
        finished = runs.run_all(models)
        score = sum(run.metric("val MAP@R", "val_best") for run in finished) / len(finished)
    except FloatingPointError:  # one fold diverged; others may have finished before it
        score = 0.0
    runs.forget(models)  # 50 trials of 4 networks are 10 GB
    return score
