"""The made parts of docs/papers/*.md, a reproducibility report per paper; judgement is written there by hand."""

import textwrap
from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments import papers
from experiments.across import ledger as shown
from experiments.analysis import claims, ledger, stored, tables, verdict_tables
from experiments.analysis.judging import Verdict
from experiments.figures.matrix import MARKS
from experiments.report import catalogue, costs, published, readme, show, verdicts

ROOT = "../../"  # of the repository, as a page sees it


def parts(paper: str) -> dict[str, str]:
    """The made parts of the page of a paper by name."""
    makers = {
        "cited": cited,
        "scope": scope,
        "settings": settings,
        "results": results,
        "errata": errata,
        "open": still_open,
        "rerun": rerun,
    }
    return {name: make(paper) for name, make in makers.items()}


def figures(paper: str) -> dict[str, Figure]:
    """By the names of their files."""
    from experiments.figures.effects import forest

    return {
        f"{paper}_matrix": shown.matrix(verdicts.made(), [paper], 2),
        f"{paper}_forest": forest(forest_rows(paper), published_rows(paper)),
    }


def own(paper: str) -> list[str]:
    """The claims of a paper."""
    return [claim_id for claim_id, row in claims.stated().items() if row["paper"] == paper]


def cited(paper: str) -> str:
    row = published.papers().loc[paper]
    return f"{row.authors}: *{row.title}*. {row.venue}, {row.year}. <{row.link}>"


# --- scope ------------------------------------------------------------------------------------------------------------


def scope(paper: str) -> str:
    """What the paper claims, where, and the verdict of each claim in each place."""
    picture = f"![Verdicts of the claims of {claims.name_of(paper)} by data set](../figures/{paper}_matrix.png)"
    return "\n".join([picture, "", *matrix_table([paper])])


def matrix_table(papers: list[str]) -> Iterator[str]:
    """The matrix as text: a row per claim with the paper's sentence and the marks of its verdicts."""
    table = ledger.matrix(verdicts.lines())
    yield f"| claim | the paper says | where | {' | '.join(table.columns)} |"
    yield "|---|---|---|" + "---|" * table.shape[1]
    for paper in papers:
        for claim_id in own(paper):
            row = claims.stated()[claim_id]
            marks = " | ".join(MARKS[word] for word in table.loc[claim_id])
            yield f"| {claim_id} | {shown._cell(row['statement'])} | {row['where']} | {marks} |"
    yield ""
    yield "; ".join(f"{mark} {word}" for word, mark in MARKS.items()) + "."


# --- method and settings ----------------------------------------------------------------------------------------------


def settings(paper: str) -> str:
    """What the paper's own method is trained with at the published scale and at small, and what says so."""
    test = catalogue.claims()[published.papers().loc[paper, "headline"]]
    method = test.parts[0].subject.cells[0].method
    at_scale, small = (_settings(test.notebook, method, profile) for profile in ("paper", "small"))
    lines = [
        f"{method} of notebook {_link(test.notebook)}: the options of the loss, and settings of a known source; "
        f"`python -m experiments config {test.notebook[:2]} --profile paper` prints all.",
        "",
        "| setting | `paper` | source | `small` |",
        "|---|---|---|---|",
    ]
    for name, (value, origin, remark) in at_scale.items():
        source = "; ".join(filter(None, (origin, remark)))
        if "paper" in source.replace("profile paper", "") or name.startswith("loss."):
            cells = map(shown._cell, (str(value), source, str(small[name][0]) if name in small else ""))
            lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _settings(notebook: str, method: str, profile: str) -> show.Settings:
    study = catalogue.find(notebook)
    params = study.configured({"profile": profile})
    spec = next(spec for spec in study.specs_untrained(params) if spec.method == method)
    return show.settings(spec, params, papers.methods().get(method))


# --- results ----------------------------------------------------------------------------------------------------------


def deciding(paper: str) -> pd.DataFrame:
    """The lines of a paper's claims that decide, with their place in the matrix."""
    lines = verdicts.lines()
    lines = lines[lines["claim_id"].isin(own(paper)) & (lines["decides"] == "yes") & (lines["comparison"] != "")]
    return lines.assign(place=ledger.places(lines))


def forest_rows(paper: str) -> pd.DataFrame:
    """The effects that `figures.effects.forest` draws, each with the sign that its comparison is expected to have."""
    lines = deciding(paper)
    columns = ["place", "metric", "effect", "low", "high", "zero", "unit", "verdict"]
    labels = [
        _label(line.claim_id, line.compared.part, verdict_tables.said(line.compared)) for line in lines.itertuples()
    ]
    return lines[columns].assign(claim=labels).astype(dict.fromkeys(("effect", "low", "high", "zero"), float))


def published_rows(paper: str) -> pd.DataFrame:
    """The published effects on birds and cars that it draws beside them; alike: of the comparison that a mark shows."""
    known = published.effects()
    known = known[known["claim_id"].isin(own(paper)) & known["dataset"].isin(["cub", "cars"])]
    marks = {line.claim_id: line for line in deciding(paper)[::-1].itertuples()}
    rows = []
    for row in known.itertuples():
        mark, part = marks.get(row.claim_id), catalogue.claims()[row.claim_id].parts[0]
        alike = mark is not None and (mark.compared.name, mark.metric) == (row.ours, row.metric)
        label = _label(
            row.claim_id, *((part,) if mark is None else (mark.compared.part, verdict_tables.said(mark.compared)))
        )
        rows.append({"claim": label, "dataset": row.dataset, "value": row.value, "alike": alike})
    return pd.DataFrame(rows, columns=["claim", "dataset", "value", "alike"])


def _label(claim_id: str, part: claims.Part, compared: str = "") -> str:
    """ "03 beats ProxyAnchor [+]", and in the lines beneath what was compared."""
    sign = {"higher": "+", "lower": "−", "flat": "0"}[part.direction]
    said = f"{claim_id.partition('-')[2]} {claims.short_statements()[claim_id]} [{sign}]"
    return "\n".join([said, *textwrap.wrap(compared, 44)])


def results(paper: str) -> str:
    """The forest plot and its numbers."""
    name, rows = claims.name_of(paper), deciding(paper)
    lines = [
        f"![Effects with intervals of the claims of {name}, beside the published ones](../figures/{paper}_forest.png)",
        "",
        "Each mark is the least favourable comparison of a claim; a hollow mark stands for single "
        "seeds, or for a value that is the same in all. A black diamond is what the paper published of the same "
        "comparison on birds or cars with its own network, a grey one what it published of another comparison of the "
        "claim. In brackets stands the sign that the claim expects; arrows end an interval that goes on. Searches "
        "maximise MAP@R on validation classes; where a claim is about R@1 or P@1, the same difference in MAP@R stands "
        "beside it, which need not agree and decides nothing.",
        "",
    ]
    if rows.empty:
        return "\n".join([*lines, "No claim of this paper has a line that decides yet."])
    lines += [
        "| claim | on | ours | its MAP@R | published | verdict | test | it rests on |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows.itertuples():
        compared = row.compared
        effect = f"{shown._cell(verdict_tables.said(compared))}: {row.metric} {verdict_tables.numbers(compared)}"
        expected = shown._cell(claims.stated()[row.claim_id]["expected_size"])
        verdict = "; ".join(filter(None, (verdict_tables.in_words(row), row.role.replace("named", ""))))
        verdict += f"; mixes {row.mixes}" if row.mixes else ""
        where = f"{row.plain_label}, {_link(row.notebook)}"
        cells = (
            row.claim_id,
            row.place,
            effect,
            _other_metric(row),
            expected,
            verdict,
            shown._cell(row.revised) or "frozen",
            where,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _other_metric(row: Any) -> str:
    """The same difference in MAP@R, which searches maximise, where the claim is about the nearest image."""
    part = row.compared.part
    if part.metric not in ("R@1", "P@1") or not part.baselines or row.compared.baseline.is_constant:
        return ""
    (saved,) = (at for at in stored.stored(row.notebook) if (at.stem, at.profile) == (row.stem, row.profile))
    try:
        return stored.Numbers(saved.table).gap(str(row.compared.subject), str(row.compared.baseline), "MAP@R")
    except tables.MissingRows:
        return ""


def errata(paper: str) -> str:
    rows = published.errata()
    return "\n".join(readme.errata_table(rows[rows["paper"] == paper], ROOT))


# --- what is open, and how to go on -----------------------------------------------------------------------------------


def still_open(paper: str) -> str:
    """What every claim without an outcome lacks, and what its notebook costs."""
    table, here = costs.table(), verdicts.here()
    hours = table.groupby(["profile", "notebook"])["hours"].sum()
    lines = verdicts.lines()
    rows = [
        "| claim | here | reason | comparisons | detectable | notebook | `small`, hours | `paper`, hours |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for claim_id in own(paper):
        if here[claim_id] not in (Verdict.INCONCLUSIVE, Verdict.NOT_RUN, Verdict.NOT_INTERPRETABLE):
            continue
        test = catalogue.claims()[claim_id]
        decided = ledger.lines_that_decide(lines[lines["claim_id"] == claim_id], test)
        reason, detail, least = f"no runs on {', '.join(claims.named(claim_id))}", "", ""
        for line in decided.itertuples():
            reason, detail = line.reason, shown._cell(line.detail)
            least = "" if pd.isna(line.detectable) else f"{line.detectable:.2g}{line.unit}"
        cost = (f"{hours.get((profile, test.notebook), 0):.1f}" for profile in ("small", "paper"))
        cells = (claim_id, here[claim_id], reason, detail, least, _link(test.notebook), *cost)
        rows.append(f"| {' | '.join(cells)} |")
    if len(rows) == 2:
        return "Every claim has an outcome here."
    note = (
        "Hours are those of a whole notebook on the data sets that its claims name: numbers of runs times the median "
        "seconds of those on record for `small`, images over the stated throughput of one A100 for `paper`."
    )
    return "\n".join([*rows, "", note])


def rerun(paper: str) -> str:
    """The commands that make this page's numbers."""
    test = catalogue.claims()[published.papers().loc[paper, "headline"]]
    notebooks = sorted({catalogue.claims()[claim_id].notebook for claim_id in own(paper)})
    numbers = ", ".join(name[:2] for name in notebooks)
    tables = [saved for name in notebooks for saved in stored.stored(name) if saved.profile == "small"]
    measured = {saved.table["dataset"].iloc[0] for saved in tables}
    further = sorted(dataset for dataset in measured if dataset in ("omniglot", "mnist"))
    return "\n".join(
        [
            f"Notebooks {', '.join(map(_link, notebooks))}:",
            "",
            "```sh",
            "python -m experiments data fetch cub",
            "python workflow/birds.py data/birds && export DMLREPRO_DATA=data/birds   # the part that verdicts rest on",
            *(f"python -m experiments data fetch {dataset}" for dataset in further),
            f"python -m experiments tune {test.notebook[:2]} --profile small   # tunes every method alike, once",
            f"snakemake --profile workflow/profiles/local --config profile=small notebooks={numbers.replace(' ', '')}",
            "python -m experiments report   # judges the new tables and writes this page anew",
            "unset DMLREPRO_DATA",
            f"papermill notebooks/{test.notebook}.ipynb out.ipynb -p profile paper   # the published scale, on a GPU",
            "```",
        ]
    )


def _link(notebook: str) -> str:
    return f"[{notebook[:2]}]({ROOT}notebooks/{notebook}.ipynb)"
