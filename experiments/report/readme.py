"""What the README says of results/: the answers on its first screen, the errata that change results, the cost."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments import papers
from experiments.across import ledger as shown
from experiments.analysis import claims, comparing, ledger, stored, tables, verdict_tables
from experiments.analysis.judging import OUT_OF, Verdict
from experiments.analysis.statistics import LEVEL, MIN_SEEDS, holm, p_above, t_interval
from experiments.analysis.tables import Expression
from experiments.report import catalogue, costs, published, verdicts

PANELS = 3  # data sets that are drawn
SHOWN = 3  # claims that a list names


def parts() -> dict[str, str]:
    """The made parts of README.md by name."""
    return {"answers": answers(), "errata": errata_that_change_results(), "cost": cost()}


def figures() -> dict[str, Figure]:
    """By the names of their files."""
    from experiments.figures.effects import rankings as draw

    ranked = {textwrap.fill(title, 36): table for title, table in rankings().items()}
    return {"matrix": shown.matrix(verdicts.made()), "which_loss": draw(ranked, "R@1", names=papers.names())}


# --- the first screen -------------------------------------------------------------------------------------------------


def answers() -> str:
    return "\n".join(
        [
            f"![Verdicts of {len(claims.stated())} claims by data set](docs/figures/matrix.png)",
            "",
            state(),
            "",
            *headlines(),
            "",
            "Mean effect and 95 % interval of the least favourable comparison.",
            "",
            "![R@1 of every loss by data set, with 95 % intervals over seeds](docs/figures/which_loss.png)",
            "",
            f"Losses of {verdict_tables.listed(ranking_notebooks())}, on classes never seen in training; in a panel "
            "one network, images and steps for all.",
        ]
    )


def state() -> str:
    """Which loss came out first; the claims by verdict, those whose tests stand as they were frozen apart; what refutes
    most of them; why the others are open; what the rest would cost."""
    here, tests = verdicts.here(), catalogue.claims()
    frozen = {claim_id: word for claim_id, word in here.items() if not tests[claim_id].revised}
    by_verdict = {word: [claim_id for claim_id in here if here[claim_id] == word] for word in Verdict}
    return "\n".join(
        [
            table_row(["verdict here", "claims", "test frozen before its runs", "which"]),
            "|---|---|---|---|",
            *(
                table_row([str(word), str(len(of)), str(sum(one in frozen for one in of)), _linked(of)])
                for word, of in by_verdict.items()
                if of
            ),
            "",
            f"- **At the published scale:** {_at_papers_scale()}",
            f"- **Highest R@1:** {advice()}",
            f"- **Rivals in contradicted comparisons:** {refuting()}",
            f"- **Why inconclusive or not interpretable:** {why_open()}",
            f"- **Cost:** {_cost_in_words()}",
        ]
    )


def _at_papers_scale() -> str:
    lines = verdicts.lines()
    at_scale = lines[(lines["scale"] == ledger.PAPER_SCALE) & (lines["decides"] == "yes")]
    tests = catalogue.claims()
    run = [ledger.verdict(rows, tests[claim_id], ledger.PAPER_SCALE) for claim_id, rows in at_scale.groupby("claim_id")]
    return ledger.count_words(run) or str(Verdict.NOT_RUN)


def refuting() -> str:
    """In how many claims each rival is the better side of a contradicted comparison, the most frequent first."""
    counts: dict[str, int] = {}
    tests, by_claim = catalogue.claims(), verdicts.by_claim()
    for claim_id, own in by_claim.items():
        for line in ledger.lines_that_decide(own, tests[claim_id]).itertuples():
            for rival in {name for compared in line.contradicted for name in compared.baseline.methods}:
                counts[rival] = counts.get(rival, 0) + 1
    ranked = sorted(counts, key=lambda rival: -counts[rival])
    return ", ".join(f"{rival} ({counts[rival]} claims)" for rival in ranked[:SHOWN]) or "none"


def about_retrieval(test: claims.ClaimTest) -> bool:
    return any(part.metric.startswith(claims.RETRIEVAL) for part in test.deciding if part.about == "training")


def table_row(cells: Iterable[str]) -> str:
    """A row of a Markdown table; without blanks, so that a count of words counts no bars."""
    return f"|{'|'.join(cells)}|"


def _linked(claim_ids: list[str], most: int = SHOWN) -> str:
    """Claims with links to the pages of their papers, and what they say in short."""
    short = claims.short_statements()
    named = [
        f"[{claim_id}](docs/papers/{claim_id.partition('-')[0]}.md) “{short[claim_id]}”"
        for claim_id in claim_ids[:most]
    ]
    more = [f"[{len(claim_ids) - most} more](docs/matrix.md)"] if len(claim_ids) > most else []
    return ", ".join([*named, *more])


def why_open() -> str:
    """The reasons of verdicts that say nothing, counted."""
    tests, by_claim = catalogue.claims(), verdicts.by_claim()
    open_words = (Verdict.INCONCLUSIVE, Verdict.NOT_INTERPRETABLE)
    reasons = [
        line.reason or "no outcome at 95 %"
        for claim_id, word in verdicts.here().items()
        if word in open_words
        for line in ledger.lines_that_decide(by_claim[claim_id], tests[claim_id]).itertuples()
    ]
    return ", ".join(f"{reason} ({count})" for reason, count in pd.Series(reasons).value_counts().items()) or "none"


def headlines() -> Iterator[str]:
    """A row per paper: its headline claim, and what was found of it on each data set that has something on any."""
    lines, here = verdicts.lines(), verdicts.here()
    deciding = lines[lines["decides"] == "yes"]
    of_place = deciding.groupby(deciding["dataset"].map(claims.short_name).map(ledger.PLACES))
    headline = published.papers()["headline"]
    found = {place: own[own["claim_id"].isin(headline)].drop_duplicates("claim_id") for place, own in of_place}
    effects = {place: dict(zip(own["claim_id"], map(_effect, own.itertuples()))) for place, own in found.items()}
    places = [place for place in ledger.PLACES.values() if effects.get(place)]
    yield table_row(["paper", "it claims", *places, "verdict", "notebook"])
    yield "|---" * (len(places) + 4) + "|"
    for paper, row in published.papers().iterrows():
        name = catalogue.claims()[row.headline].notebook
        statement = f"“{claims.short_statements()[row.headline]}”"
        cited = f"[{row['name']}](docs/papers/{paper}.md), [{row.authors}, {row.year}]({row.link})"
        measured = (effects[place].get(row.headline, "–") for place in places)
        yield table_row(
            (
                cited,
                statement,
                *measured,
                _counted(row.headline, here[row.headline]),
                f"[{name[:2]}](notebooks/{name}.ipynb)",
            )
        )


def _counted(claim_id: str, word: str) -> str:
    """ "mixed (3 of 5)"."""
    own = ledger.lines_that_decide(verdicts.by_claim()[claim_id], catalogue.claims()[claim_id])
    return f"{word} ({own['k'].iloc[0]} of {own['n'].iloc[0]})" if word in OUT_OF else str(word)


def _effect(line: Any) -> str:
    """ "R@1 −2.8 [−4.0, −1.6]"; of fewer seeds than an interval needs, how many there are."""
    value = f"{line.metric} {_signed(line.effect)}"
    if np.isnan(line.low):
        return f"{value}, n = {line.seeds}"
    return f"{value} [{_signed(line.low)}, {_signed(line.high)}]"


def _signed(value: float) -> str:
    return f"{value + 0.0:+.1f}".replace("-", "−")


# --- which loss -------------------------------------------------------------------------------------------------------


def advice() -> str:
    """On each data set that is drawn, where seeds suffice, the loss with the highest mean and what ties with it."""
    leads = [
        f"on {title.partition(' (')[0]}, of {len(table)} losses {'' if table['tuned'].all() else 'not '}tuned alike, "
        f"{_leader(table)}"
        for title, table in rankings().items()
        if table["low"].notna().all()
    ]
    sentence = f"Highest R@1: {'; '.join(leads)}" if leads else "No data set has the seeds to tell"
    return f"{sentence}. For your images, [notebook 01](notebooks/01_your_images.ipynb) chooses."


def _leader(table: pd.DataFrame) -> str:
    """ "A (71.7, untrained 65.8), not told apart from B", whose difference is unclear after Holm over all others."""
    best, *others = table.itertuples()
    p = holm([2 * p_above(_gains(best.values, other.values), 0) for other in others], len(others))
    ties = [other.method for other, value in zip(others, p) if not value < LEVEL]
    tied = f", not told apart from {verdict_tables.listed(ties)}" if ties else ""
    return f"{best.method} ({best.mean:.1f}, untrained {best.untrained:.1f}){tied}"


def _gains(ours: Mapping[int, float], theirs: Mapping[int, float]) -> np.ndarray:
    """Paired differences over the seeds that both have."""
    return np.array([ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())])


def rankings() -> dict[str, pd.DataFrame]:
    """What a table is of -> its losses, the highest mean R@1 first: columns method, mean, low, high, tuned, untrained,
    what the features have as they are, and values by seed."""
    order = list(ledger.PLACES)
    by_dataset = comparisons()
    short = {dataset: claims.short_name(dataset) for dataset in by_dataset}
    chosen = sorted(
        by_dataset, key=lambda dataset: order.index(short[dataset]) if short[dataset] in order else len(order)
    )[:PANELS]
    ranked = {}
    for dataset in chosen:
        table = pd.concat([_ranked(name, saved) for name, saved in by_dataset[dataset].items()])
        table = table.drop_duplicates("method").sort_values("mean", ascending=False, ignore_index=True)
        first = next(iter(by_dataset[dataset].values()))
        few = ", a direction only" if first.few_seeds or first.profile == "quick" else ""
        older = ", older code" if any(saved.older for saved in by_dataset[dataset].values()) else ""
        ranked[f"{first.plain_label}{few}{older}"] = table
    return ranked


def _ranked(name: str, saved: stored.Stored) -> pd.DataFrame:
    numbers, rows = stored.Numbers(saved.table), []
    cells = {method: method for method in numbers.methods if method not in comparing.UNTRAINED}
    for method in catalogue.studies()[name].ranked:  # where the paper's own loss was trained in another way only, that
        levels = numbers.cells.get((method, "R@1"), {})
        if levels and all(level.setting for level in levels):
            del cells[method]
            cells |= {str(level): f"{method} ({level.setting.replace('=', ' ')})" for level in levels}
    for cell, label in cells.items():
        try:
            by_seed = tables.by_seed(numbers.cells, Expression.read(cell), "R@1")
        except tables.MissingRows:
            continue
        values = np.array([*by_seed.values()])
        low, high = t_interval(values) if len(values) >= MIN_SEEDS else (np.nan, np.nan)
        tuned = saved.trials.get(cell.partition(";")[0], 0) >= comparing.TUNED
        row = {"method": label, "mean": values.mean(), "low": low, "high": high, "tuned": tuned}
        rows.append(row | {"untrained": numbers.mean("untrained"), "values": by_seed})
    return pd.DataFrame(rows)


def ranking_notebooks() -> list[str]:
    """Links to the notebooks that rank losses and have a table of them."""
    names = sorted({name for tables_of in comparisons().values() for name in tables_of})
    return [f"[{name[:2]}](notebooks/{name}.ipynb)" for name in names]


def comparisons() -> dict[str, dict[str, stored.Stored]]:
    """Data set -> notebook that ranks losses, beside the untrained -> its table of most losses and seeds there."""
    by_dataset: dict[str, dict[str, stored.Stored]] = {}
    for name in (name for name, study in catalogue.studies().items() if study.ranked):
        for saved in stored.stored(name):
            methods = set(saved.table["method"])
            if "untrained" in methods and len(methods - comparing.UNTRAINED) > 2:
                by_dataset.setdefault(saved.table["dataset"].iloc[0], {}).setdefault(name, saved)
    return by_dataset


# --- errata and cost --------------------------------------------------------------------------------------------------


def errata_table(rows: pd.DataFrame, root: str = "", *, severity: bool = True) -> Iterator[str]:
    """Errata, a row each with our reading and the test that shows it, for a page from which `root` leads to the
    repository's; with their severity, or where it is said of all."""
    yield table_row(["where", *["severity"] * severity, "what is wrong", "our reading"])
    yield "|---" * (3 + severity) + "|"
    for row in rows.itertuples():
        file, _, test = row.test.partition("::")
        where = f"{claims.name_of(row.paper)}, {row.where}"
        reading = f"[{row.reading}]({root}{row.file}) ([test]({root}{file} '{test}'))"
        cells = (where, *[row.severity] * severity, row.wrong.replace("|", r"\|"), reading)
        yield table_row(cells)


def errata_that_change_results() -> str:
    rows = published.errata()
    most = rows[rows["severity"] == published.SEVERITIES[0]]
    more = f"[{len(rows) - len(most)} more](docs/errata.md) change a formula or are misprints."
    return "\n".join([*errata_table(most, severity=False), "", more])


def hours() -> pd.DataFrame:
    """By paper: hours of `small`, GPU-hours of `paper` by data set, and of the search before."""
    table = costs.table().assign(paper=lambda rows: rows["paper"].map(published.papers()["name"]))
    small = table[table["profile"] == "small"].groupby("paper", sort=False)["hours"].sum()
    paper = table[table["profile"] == "paper"]
    wide = paper.pivot_table(index="paper", columns="dataset", values="hours", aggfunc="sum", sort=False, fill_value=0)
    wide = wide.assign(all=wide.sum(axis=1), tuning=paper.groupby("paper")["tuning_hours"].sum())
    wide.insert(0, "small", small)
    return wide.loc[published.papers()["name"]].fillna(0)


def cost() -> str:
    table = hours()
    data = [name for name in table if name not in ("small", "all", "tuning")]
    where = " / ".join(data)
    lines = [
        table_row(
            [
                "paper",
                "hours, `small`",
                f"GPU-hours, `paper`: {where}",
                "in all",
                "tuning before",
                "days, one A100",
            ]
        ),
        "|---|---|---|---|---|---|",
    ]
    for name, row in [*table.iterrows(), ("total", table.sum())]:
        gpu_hours = " / ".join(f"{row[dataset]:.0f}" for dataset in data)
        days = (row["all"] + row["tuning"]) / 24
        numbers = (f"{value:.0f}" for value in (row["all"], row["tuning"], days))
        lines.append(table_row([str(name), f"{row['small']:.0f}", gpu_hours, *numbers]))
    disk = published.disk().groupby("profile")[["download", "decoded"]].sum().sum(axis=1)
    lines += [
        "",
        "Runs times median seconds on record; `paper` at "
        f"[{costs.IMAGES_PER_SECOND} images per second](experiments/report/costs.py); days count tuning. Disk: "
        f"{disk['quick']:.0f} GB of packages, {disk['small']:.0f} GB of birds and cars, "
        f"{disk['paper']:.0f} GB more of SOP; InShop is not counted.",
    ]
    return "\n".join(lines)


def _cost_in_words() -> str:
    total = hours().sum()
    gpu = total["all"] + total["tuning"]
    return (
        f"About {total['small']:.0f} hours at small scale; {gpu:.0f} GPU-hours ({gpu / 24:.0f} days on one A100) "
        "at the published one ([table](#cost))."
    )
