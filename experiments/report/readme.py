"""What the README says of results/: the answers on its first screen, the errata that change results, the cost."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments import papers
from experiments.across import ledger as shown
from experiments.analysis import claims, comparing, judging, ledger, sentences, stored, tables
from experiments.analysis.statistics import LEVEL, MIN_SEEDS, holm, p_above, t_interval
from experiments.analysis.tables import Expression
from experiments.report import catalogue, costs, published, verdicts

PANELS = 3  # data sets that are drawn
SHOWN = 3  # claims that a list names
CAUSES = 5  # why claims are unclear, the most frequent
OBSTACLES = (  # why a claim is unclear, by what its reason contains; the first that fits
    (judging.NOT_SHOWN.strip(), "a premise not met"),
    ("not tuned", "not tuned alike"),
    ("seeds (planned|needed)", "too few seeds"),
    ("the same value in each", "constant measures"),
    ("covers", "a range measured in part"),
    ("has not learned", "nothing learned"),
    ("is no evidence about", "another network"),
    ("depends on the reading", "two readings"),
    ("", "effects too close to call"),
)


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
            "Mean effect and 95 % interval of the comparison that decides or speaks least for the claim; no verdict "
            "rests on letters, which no claim names.",
            "",
            "![R@1 of every loss by data set, with 95 % intervals over seeds](docs/figures/which_loss.png)",
            "",
            f"Losses of {sentences.listed(ranking_notebooks())}, on classes never seen in training; in a panel one "
            "network, images and steps for all.",
        ]
    )


def state() -> str:
    """What is confirmed where, which loss came out first, what held, what did not, why so much is open, what the rest
    would cost: a sentence and five answers."""
    here, tests = verdicts.here(), catalogue.claims()
    by_verdict = {
        word: [claim_id for claim_id, verdict in here.items() if verdict == word] for word in judging.VERDICTS
    }
    decided = [claim_id for word in judging.OUTCOMES for claim_id in by_verdict[word]]
    retrieval = sum(about_retrieval(tests[claim_id]) for claim_id in decided)
    by_claim = verdicts.by_claim()
    untuned = sum(
        ledger.lines_that_decide(by_claim[claim_id], tests[claim_id])["tuned"].eq("no").any() for claim_id in decided
    )
    defaults = f", {untuned} untuned ablations" * bool(untuned)
    rest = {judging.NOT_RUN: "not run", judging.FAILURES: "comparing failures", judging.COST: "about costs"}
    rest |= {judging.IDENTITY: "by construction", judging.UNTESTABLE: "untestable"}
    others = ", ".join(f"{len(by_verdict[word])} {words}" for word, words in rest.items() if by_verdict[word])
    held = by_verdict[judging.AS_CLAIMED]
    failed = [f"{_linked(by_verdict[word])} ({word})" for word in judging.OUTCOMES[1:] if by_verdict[word]]
    return "\n".join(
        [
            f"{_at_papers_scale()} Here, at small scale, rivals tuned alike, {len(held)} of {len(here)} claims go as "
            f"claimed, {len(by_verdict[judging.OTHER_WAY])} the other way, with no difference in "
            f"{len(by_verdict[judging.NO_DIFFERENCE])} ({retrieval} of these {len(decided)} about "
            f"retrieval{defaults}); {len(by_verdict[judging.UNCLEAR])} are unclear, {others}.",
            "",
            f"- **Which loss?** {advice()}",
            f"- **What held?** {_linked(held) or 'Nothing so far'}.",
            f"- **What did not?** {'; '.join(failed) or 'Nothing so far'}.",
            f"- **Why?** {why_open()}",
            f"- **What would it cost?** {_cost_in_words()}",
        ]
    )


def _at_papers_scale() -> str:
    lines = verdicts.lines()
    at_scale = lines[(lines["scale"] == ledger.PAPER_SCALE) & (lines["decides"] == "yes")]
    tests = catalogue.claims()
    run = {
        claim_id: ledger.verdict(rows, tests[claim_id], ledger.PAPER_SCALE)
        for claim_id, rows in at_scale.groupby("claim_id")
        if about_retrieval(tests[claim_id])
    }
    if not set(run.values()) & set(judging.OUTCOMES):
        return "No retrieval claim is confirmed or refuted at the published scale."
    return f"At the published scale, of the claims about retrieval: {ledger.count_words(run.values())}."


def about_retrieval(test: claims.ClaimTest) -> bool:
    said = (part for part in test.parts if not part.premise and part.about == "training")
    return any(part.metric.startswith(claims.RETRIEVAL) for part in said)


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
    """What stands in the way of the claims that are unclear, counted."""
    counts = dict.fromkeys((words for _, words in OBSTACLES), 0)
    tests, by_claim = catalogue.claims(), verdicts.by_claim()
    unclear = [claim_id for claim_id, word in verdicts.here().items() if word == judging.UNCLEAR]
    for claim_id in unclear:
        lines = ledger.lines_that_decide(by_claim[claim_id], tests[claim_id])
        reason = lines.loc[lines["verdict"] == judging.UNCLEAR, "reason"].iloc[0]
        counts[next(words for pattern, words in OBSTACLES if re.search(pattern, reason))] += 1
    ranked = sorted(filter(counts.get, counts), key=lambda words: -counts[words])
    named, others = ranked[:CAUSES], sum(counts[words] for words in ranked[CAUSES:])
    obstacles = [f"{words} ({counts[words]})" for words in named] + [f"others ({others})"] * bool(others)
    return f"Of what is unclear: {', '.join(obstacles)}." if obstacles else "No claim is unclear."


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
        yield table_row((cited, statement, *measured, here[row.headline], f"[{name[:2]}](notebooks/{name}.ipynb)"))


def _effect(line: Any) -> str:
    """ "R@1 −2.8 [−4.0, −1.6]"; of fewer seeds than an interval needs, how many there are."""
    value = f"{line.metric} {_signed(line.effect)}"
    if np.isnan(line.low):
        return f"{value}, n = {line.n}"
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
    tied = f", not told apart from {sentences.listed(ties)}" if ties else ""
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
