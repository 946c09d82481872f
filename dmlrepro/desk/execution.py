"""What the cells of every notebook call: its runs, its verdicts and findings, and what results/ holds beside them."""

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd

from dmlrepro.desk import catalogue, verdicts
from dmlrepro.evidence import provenance, results, saving, stored, summaries, tables
from dmlrepro.evidence.judging import Judged, judge
from dmlrepro.papers.params import Params
from dmlrepro.training import keys, protocols, records, runs
from dmlrepro.training.spec import RunSpec


def run(specs: Iterable[RunSpec], params: Params, jobs: int | None = None) -> list[runs.RunResult]:
    """The finished runs of a notebook, trained where neither record nor cache has them, `jobs` at a time (None: one per
    core); says how many are stale. What the notebook measures on a run's weights is on record when the run is, but for
    what it measures on several together, as on the models of folds.

    With environment variable DMLREPRO_TRAIN=0 they are those of the seeds of which the record has every run, and none
    is trained but what a figure shows the weights of.

    Raises:
        FileNotFoundError: DMLREPRO_TRAIN=0, and the record has no seed of this notebook whole.
    """
    specs, file = list(specs), records.file_of(params.profile, params.notebook)
    if file and os.environ.get("DMLREPRO_TRAIN") == "0":
        there = runs.on_record(specs, file)
        missing = {spec.seed for spec, found in zip(specs, there) if not found}
        specs = [spec for spec in specs if spec.seed not in missing]
        if not specs:
            raise FileNotFoundError(
                f"{params.notebook}: {there.count(False)} of {len(there)} runs are not in {file.parent}, some of every "
                "seed; train them (`python -m dmlrepro train`), or leave DMLREPRO_TRAIN=0 out"
            )
    finished = runs.run_all(specs, jobs=jobs, record=file, measure=functools.partial(_measure, params))
    if old := sum(run.stale for run in finished):
        print(f"{old} of {len(finished)} runs. {stored.OLDER}")
    return finished


def _measure(params: Params, finished) -> None:
    """All that the table and the verdicts of a notebook need of the weights of one finished run."""
    protocol = protocols.PROTOCOLS.get(finished.spec.protocol)
    if finished.spec.fold is None or (protocol and "fold" in protocol.structure):
        results.hits([finished], params)
    catalogue.find(params.notebook).measures(finished, params)


def measure_recorded(file: Path, finished) -> None:
    """The same for a run of a file of the record, with the parameters that its notebook has by default."""
    values = {"profile": file.parents[1].name, "dataset": finished.spec.dataset}
    _measure(catalogue.find(file.stem).params.from_values(values), finished)


def judged(table: pd.DataFrame, params: Params, finished: Iterable = ()) -> Judged:
    """The verdicts on the claims of a notebook from the table of this very execution.

    finished: its runs, for what other test classes could change; none: nothing is said of that.
    """
    finished = list(finished)
    tests = catalogue.claims_of(params.notebook)
    if any(run.stale for run in finished) or older(params):
        return stored.judged(table, tests, params.notebook, older=True)
    return judge(
        table,
        tests,
        [claim_id for claim_id, test in tests.items() if test.notebook == params.notebook],
        hits=results.hits(finished, params) if finished else None,
        trials=trials(table, params),
        device=keys.device_name(),
    )


def older(params: Params) -> bool:
    """Whether the table that a notebook has just saved is of runs of older code."""
    path = saving.table_path(params)
    return path.exists() and stored.of_older_code(provenance.record(path))


def trials(table: pd.DataFrame, params: Params) -> dict[str, int]:
    """By method, how many trials of a search chose its settings: of the notebook's own, or of the committed one.

    A committed search counts with the settings that it tried, 16, not with its 24 runs: the others score four of the
    same settings on further folds. A variant has the trials of the search that it takes.
    """
    own = getattr(params, "search_trials", 0)
    committed = {method: len(found["trials"]) for method, found in params.searches().items()}
    return {method: own or committed.get(method, 0) for method in dict.fromkeys(table["method"])}


def found(table: pd.DataFrame, params: Params):
    """The findings of a notebook made from the table of this very execution, as a list to read."""
    from IPython.display import Markdown

    tests, others = catalogue.claims_of(params.notebook), catalogue.find(params.notebook).findings
    saved, tuned = saving.as_saved(table), trials(table, params)
    said = stored.findings(saved, tests, params.notebook, others, tuned, older=older(params))
    if missing := _seeds_missing(table, params):
        said.insert(0, missing)
    return Markdown("\n".join(f"- {sentence}" for sentence in said) or "Too few rows for a finding.")


def _seeds_missing(table: pd.DataFrame, params: Params) -> str:
    """ "7 of 10 seeds" of a notebook that was executed on what is on record so far; "" of a whole one."""
    seeds = table.loc[table["dataset"] != tables.SYNTHETIC, "seed"].nunique()
    asked = 0 if params.profile == "quick" else getattr(params, "seeds", None) or 0
    return f"{seeds} of {asked} seeds are on record so far." if 0 < seeds < asked else ""


def lead(params: Params, figure: Callable) -> None:
    """Show the figures of the tables in results/ of profiles that carry more than that of this execution, if there are
    any: what a smaller one shows is read after them.

    figure: (table) -> a figure of it.
    """
    import matplotlib.pyplot as plt
    from IPython.display import Markdown, display

    larger = saving.PROFILES[: saving.PROFILES.index(params.profile)]
    for each in stored.stored(params.notebook, but=Path(params.profile, f"{params.stem}.csv")):
        if each.profile in larger:
            display(Markdown(f"**{each.heading}**"), drawn := figure(each.table))
            plt.close(drawn)


def all_evidence(params: Params, metrics: Sequence[str], figure: Callable | None = None) -> None:
    """Show what results/ holds for this notebook beside the present execution: tables, figures and verdicts.

    Args:
        metrics: columns of the tables.
        figure: (table) -> a figure of it; None: no figures.
    """
    import matplotlib.pyplot as plt
    from IPython.display import Image, Markdown, display

    tests = catalogue.claims_of(params.notebook)
    others = verdicts.with_ratios(params.notebook, but=Path(params.profile, f"{params.stem}.csv"))
    if not others:
        display(Markdown("So far nothing else: `papermill -p profile small` adds to results/."))
    for each in others:
        display(Markdown(f"**{each.heading}**, trained on {each.device}"), summaries.pivot(each.table, metrics))
        if figure:
            display(drawn := figure(each.table))
            plt.close(drawn)
        if each.picture:
            display(Image(each.picture, alt=f"Figure of {params.notebook} on {each.plain_label}"))
        if tests:
            shown = each.judged(tests)
            display(shown if len(shown.verdicts) else Markdown("It has no rows by which a claim could be judged."))
