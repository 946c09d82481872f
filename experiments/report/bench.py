"""A loss of the reader's own on the bench of notebook 10: contract checks, search, runs, and a page of what came out.

`python -m experiments bench` and notebook 03 call the same functions. What is the reader's lies in results/own/, which
git
ignores: the record of the runs, the search, the table and the page. All of it is keyed by the bytes of the loss; an
interrupted bench goes on when it is started again.
"""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from experiments import contract
from experiments.across import your_loss
from experiments.across.your_loss import COUNTS, METRIC, Rivals, YourLossParams
from experiments.analysis import results, saving, tables
from experiments.figures import charts, classes
from experiments.files import atomic_write, write_text
from experiments.profiles import RECIPES
from experiments.training import own_loss, runs, search

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def params_of(loss: str, profile: str | None = None, dataset: str | None = None, **others: object) -> YourLossParams:
    """The parameters of the command line: a file is one of the working directory, and the profile is the first that
    has the data set."""
    where, colon, name = loss.rpartition(":")
    loss = f"{Path(where).resolve()}{colon}{name}" if where.endswith(".py") else loss
    first = next((candidate for candidate, recipes in RECIPES.items() if dataset in recipes), "quick")
    return YourLossParams.from_values({"profile": profile or first, "dataset": dataset, "loss": loss} | others)


def checked(params: YourLossParams) -> list[contract.Finding]:
    """The contract checks of the loss; ValueError if it cannot be trained with."""
    options = {name: value for name, value in your_loss.method_of(params).options.items() if name != "code"}
    findings = contract.check(functools.partial(own_loss.OwnLoss, your_loss.code_of(params.loss), **options))
    if not contract.trains(findings):
        raise ValueError(f"loss {params.loss}: nothing can be trained with it; {findings[0].name}: {findings[0].said}")
    return findings


def searched(params: YourLossParams) -> search.Search | None:
    """The search of the loss, equal to every method's, made or gone on with; None at profiles that search none."""
    asked = your_loss.searched(params)
    path = saving.table_path(params).with_suffix(".search.json")
    return search.search(**asked, path=path) if asked else None


def run(params: YourLossParams, jobs: int | None = None) -> list[runs.RunResult]:
    """The finished runs of the loss, after its search; those that are on record or in the cache are not trained."""
    specs = your_loss.your_loss(params, searched(params))
    if not params.own:
        return runs.run_all(specs, jobs=jobs)
    record = saving.table_path(params).parent / "runs" / f"{params.stem}.jsonl"
    return runs.run_all(specs, jobs=jobs, record=record, measure=lambda run: results.hits([run], params))


def trials_of(params: YourLossParams) -> int:
    """Of the loss's own search."""
    own_search = searched(params)
    return len(own_search["trials"]) if own_search else 0


# --- the page ---------------------------------------------------------------------------------------------------------


def page(
    params: YourLossParams, findings: Sequence[contract.Finding], jobs: int | None = None
) -> tuple[Path, list[str]]:
    """Search, train and compare a loss that was `checked`; returns the Markdown page, beside which its pictures and the
    table lie, and what it says in short: what is missing, whether the loss has learned, its difference to each."""
    finished = run(params, jobs)
    table = your_loss.your_loss_table(finished, params)
    path = saving.save(table, params, runs=finished).with_suffix(".md")
    others = your_loss.rivals(params)
    rows = your_loss.joined(table, others)
    compared = your_loss.comparisons(rows, params, others, trials_of(params))
    parts = [
        *_opening(params, findings, others),
        *_compared(path, rows, compared, params),
        *_learning(path, finished, rows, params),
        *(_nearest(path, finished, rows, params, others) if others.methods else ()),
        *("## What a step costs", markdown(your_loss.step_costs(params, others)), COSTS),
        *("## What this means", MEANS),
    ]
    write_text(path, "\n\n".join(parts) + "\n")
    table_said = compared.to_string() if len(compared) else "nothing is compared"
    return path, [*said_missing(params, others), your_loss.premise(rows, params), table_said]


MEANS = (
    "A verdict holds for these images, this network and this budget, at the settings that one and the same search "
    "found for every loss. It is after Holm over all rivals: *better* and *worse* need an interval over seeds beyond "
    f"zero and a mean of at least {COUNTS:g} points of {METRIC}; *equivalent* needs two one-sided tests to put it "
    "within these; *inconclusive* is neither, and no proof of equality. Profile quick has one seed and no search: "
    "directions, never a verdict. Other images or a larger network may turn any of it."
)
COSTS = (
    "The loss's part alone, forward, backward and update, on one batch of random embeddings; all losses took turns on "
    "this machine, so that only the ratios carry over."
)


def _opening(params: YourLossParams, findings: Sequence[contract.Finding], others: Rivals) -> Iterator[str]:
    method = your_loss.method_of(params)
    yield f"# {method.name}"
    where = (
        f"{params.dataset}, {params.backbone}, {params.steps or params.epochs} {'steps' if params.steps else 'epochs'}"
    )
    yield (
        f"`{params.loss}`, sha256 {own_loss.digest_of(method.options['code'])[:16]}, on {where}, {params.seeds} seeds "
        f"(profile {params.profile}); batches {method.batches}."
    )
    yield "## Contract"
    yield "\n".join(
        f"- {'' if finding.holds else '**not met**, '}{finding.name}: {finding.said}" for finding in findings
    )
    if missing := said_missing(params, others):
        yield "## What is missing"
        yield "\n".join(f"- {sentence}" for sentence in missing)


def said_missing(params: YourLossParams, others: Rivals) -> list[str]:
    """What a comparison lacks, in sentences."""
    sentences = list(others.missing)
    if not others.methods:
        sentences.insert(0, "No rival is on record under these conditions, so that nothing is compared.")
    if params.profile == "quick":
        sentences.append("Profile quick shows directions: one seed, nobody is searched, and there is no verdict.")
        if params.search:
            sentences.append(
                f"{', '.join(params.search)} is searched at profile small, like the options of every loss."
            )
    return sentences


def _compared(path: Path, rows: pd.DataFrame, compared: pd.DataFrame, params: YourLossParams) -> Iterator[str]:
    yield "## Its row among those on record"
    yield your_loss.premise(rows, params)
    yield markdown(your_loss.standing(rows))
    main = rows[rows["setting"] == ""]
    yield _pictured(path, "scores", charts.dots(main, [METRIC, "R@1"], names=your_loss.names(params)))
    if len(compared):
        yield f"## Its difference to every rival, in points of {METRIC}"
        yield markdown(compared)


def _learning(
    path: Path, finished: Sequence[runs.RunResult], rows: pd.DataFrame, params: YourLossParams
) -> Iterator[str]:
    names = your_loss.names(params)
    yield "## How it learns"
    yield _pictured(path, "loss", charts.training_curves(finished, names=names))
    yield _pictured(path, "growth", growth(rows, params))


def growth(rows: pd.DataFrame, params: YourLossParams) -> "Figure":
    """R@1 during training, of the first seed, the highest at the end first."""
    curves = dict(sorted(tables.histories(rows, "R@1").items(), key=lambda item: -item[1][1][-1]))
    return charts.lines(curves, "step", "recall@1 (%)", title="seed 0", names=your_loss.names(params))


def _nearest(
    path: Path, finished: list[runs.RunResult], rows: pd.DataFrame, params: YourLossParams, others: Rivals
) -> Iterator[str]:
    rival = your_loss.nearest(rows, params, others)
    theirs = your_loss.runs_of_rival(rival, others)
    rates = your_loss.by_class(finished, theirs, params)
    yield f"## The nearest rival: {rival}"
    yield markdown(ends(rates))
    yield _pictured(path, "classes", classes.against(rates, names=your_loss.names(params)))


def ends(rates: pd.DataFrame, count: int = 5) -> pd.DataFrame:
    """The classes with the largest differences on either side."""
    shown = rates if len(rates) <= 2 * count else pd.concat([rates.head(count), rates.tail(count)])
    return shown.round(1)


def _pictured(path: Path, name: str, figure: "Figure") -> str:
    """A figure, written beside the page, as Markdown with its description."""
    import matplotlib.pyplot as plt

    file = path.with_suffix(f".{name}.png")
    with atomic_write(file) as temporary:
        figure.savefig(temporary, format="png", bbox_inches="tight")
    plt.close(figure)
    words = str(figure.get_label()).translate({ord("["): "(", ord("]"): ")", ord("\n"): " "})
    return f"![{words}]({file.name})"


def markdown(table: pd.DataFrame) -> str:
    """A table in Markdown."""
    lines = [[str(table.index.name or ""), *map(str, table.columns)], ["---"] * (1 + table.shape[1])]
    lines += [[str(cell) for cell in row] for row in table.itertuples(name=None)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
