"""Tables of the documentation site, made from results/ as HTML: the ledger, a row per claim, and the leaderboards.

What is inside a row can be filtered and sorted by docs/_static/site.js; without scripts the tables are whole.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

import pandas as pd

from experiments.analysis import claims, comparing, ledger, saving, stored, summaries, tables, verdict_tables
from experiments.analysis.judging import Verdict
from experiments.analysis.statistics import MIN_SEEDS, t_interval
from experiments.report import catalogue, verdicts

METRICS = ("R@1", "MAP@R")
LEAST = 3  # trained methods, from which on a table is a leaderboard
NO_IMAGES = "no images"

# --- the ledger -------------------------------------------------------------------------------------------------------


def claims_table() -> str:
    """A row per claim of data/claims.csv, with its id as anchor: what the paper says, both verdicts, and every line of
    the ledger as evidence, what decides first."""
    made, tests = verdicts.made(), catalogue.claims()
    by_claim = dict(list(made.lines.groupby("claim_id", sort=False)))
    rows = [
        _claim(claim_id, claim, by_claim.get(claim_id, made.lines.head(0)), tests.get(claim_id), made)
        for claim_id, claim in claims.stated().items()
    ]
    head = ("claim", "paper", "the paper says", "verdict here", "at the paper's scale", "evidence here", "data sets")
    return _table(head, rows, "ledger")


def _claim(
    claim_id: str,
    claim: Mapping[str, str],
    lines: pd.DataFrame,
    test: claims.ClaimTest | None,
    made: ledger.Ledger,
) -> str:
    word = made.here[claim_id]
    large = ledger.verdict(lines, test, ledger.PAPER_SCALE) if test and len(lines) else Verdict.NOT_RUN
    paper = claims.name_of(claim["paper"])
    data = sorted({_data(line) for line in lines.itertuples()})
    source = f"{escape(claim['where'])}: {escape(claims.statement(claim_id))}"
    cells = [
        _cell("claim", f'<a href="#{claim_id}">{claim_id}</a>', claim_id),
        _cell("paper", escape(paper)),
        _cell("the paper says", source),
        _cell("verdict here", _badge(word), str(_place(word))),
        _cell("at the paper's scale", _badge(large), str(_place(large))),
        _cell("evidence here", _evidence(claim_id, lines, made)),
        _cell("data sets", escape(", ".join(data))),
    ]
    about = {"paper": paper, "verdict": word, "data": "|".join(data)}
    marks = " ".join(f'data-{name}="{escape(value)}"' for name, value in about.items())
    return f'<tr id="{claim_id}" {marks}>{"".join(cells)}</tr>'


def _place(word: str) -> int:
    return [*Verdict].index(Verdict(word))


def _badge(word: str) -> str:
    return f'<span class="verdict {word.replace(" ", "-")}">{escape(word)}</span>'


def _data(line: Any) -> str:
    return NO_IMAGES if line.dataset in ("", tables.SYNTHETIC) else line.dataset


def _evidence(claim_id: str, lines: pd.DataFrame, made: ledger.Ledger) -> str:
    """The first line of a claim, and the others folded; of a claim without one, why."""
    if lines.empty:
        return escape(made.without_verdict.get(claim_id, ""))
    ours = verdict_tables.verdict_table(verdict_tables.Judged(lines, lines))["ours"]
    first, *others = [_line(line, effect) for line, effect in zip(lines.itertuples(), ours)]
    if not others:
        return first
    count = f"{len(others)} further {'line' if len(others) == 1 else 'lines'}"
    return f"{first}<details><summary>{count}</summary>{''.join(others)}</details>"


def _line(line: Any, effect: str) -> str:
    where = "; ".join(filter(None, (line.plain_label, f"n = {line.seeds}" if line.seeds else "", line.device)))
    counted = f"{line.k} of {line.n}" if line.n else ""
    why = "; ".join(filter(None, (counted, line.reason, line.detail, line.mixes and f"mixes {line.mixes}")))
    decides = "" if line.decides else " (decides nothing)"
    return (
        f"<p><strong>{escape(line.verdict)}</strong>{decides}: {escape(why)}. {escape(effect)}. "
        f"<em>{escape(where)}</em> ({_link(line.notebook)})</p>"
    )


def ledger_filters() -> str:
    """What the rows of the ledger are chosen by: paper, verdict, data set, and any word."""
    made = verdicts.made()
    papers = [claims.name_of(claim["paper"]) for claim in claims.stated().values()]
    words = set(made.here.values())
    choices = {
        "paper": list(dict.fromkeys(papers)),
        "verdict": [str(word) for word in Verdict if word in words],
        "data": sorted({_data(line) for line in made.lines.itertuples()}),
    }
    labels = {"paper": "Paper", "verdict": "Verdict here", "data": "Data set"}
    fields = [
        f'<label>{labels[name]} <select name="{name}"><option value="">all</option>'
        + "".join(f"<option>{escape(value)}</option>" for value in values)
        + "</select></label>"
        for name, values in choices.items()
    ]
    fields.append('<label>Any word <input type="search" name="text"></label>')
    return f'<form class="filters" data-for="ledger">{"".join(fields)}<output></output></form>'


# --- leaderboards -----------------------------------------------------------------------------------------------------


def leaderboards() -> str:
    """Markdown: a section per data set, in it a table per set of equal conditions, those that carry most first."""
    by_data: dict[str, list[str]] = {}
    for label, rows in _boards().items():
        data = stored.data_in_words(rows["dataset"].iloc[0])
        board = f"### {_upper(label.removeprefix(f'{data}, '))}\n\n{_board(rows)}\n"
        by_data.setdefault(data, []).append(board)
    sections = [f"## {_upper(data)}\n\n" + "\n".join(boards) for data, boards in by_data.items()]
    return "\n".join(sections)


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _boards() -> dict[str, pd.DataFrame]:
    """By conditions, the final rows of every table that compares enough methods at one setting each."""
    boards: dict[tuple[int, int, str], list[pd.DataFrame]] = {}
    for name in catalogue.studies():
        for saved in stored.stored(name):
            for protocol, rows in _compared(saved.table).groupby("protocol", sort=False):
                few = ", a direction only" if saved.few_seeds else ""
                older = ", trained by older code" if saved.older else ""
                label = f"{saved.plain_label} (profile {saved.profile}, {protocol}{few}{older})"
                marked = rows.assign(notebook=name, trials=rows["method"].map(saved.trials).fillna(0))
                boards.setdefault((saving.PROFILES.index(saved.profile), -saved.seeds, label), []).append(marked)
    ordered = sorted(boards.items(), key=lambda board: board[0][:2])
    joined = {label: pd.concat(parts) for (*_, label), parts in ordered}
    return {label: rows for label, rows in joined.items() if _trained(rows) >= LEAST}


def _compared(table: pd.DataFrame) -> pd.DataFrame:
    """The final rows of METRICS on images of methods at their default, or at the one setting that a method has."""
    rows = tables.final_rows(table)
    rows = rows[rows["metric"].isin(METRICS) & (rows["dataset"] != tables.SYNTHETIC)]
    rows = rows[rows["setting"] != tables.CURVE]
    levels = rows.groupby(["protocol", "method"])["setting"].transform("nunique")
    default = rows["setting"] == ""
    return rows[default | (levels == 1)]


def _trained(rows: pd.DataFrame) -> int:
    return len(set(rows["method"]) - comparing.UNTRAINED)


def _board(rows: pd.DataFrame) -> str:
    """A row per method, the highest R@1 first; methods that two notebooks share, with one set of runs, once."""
    lines: dict[tuple, list[str]] = {}
    for (method, setting, notebook), own in rows.groupby(["method", "setting", "notebook"], sort=False):
        values = {metric: tuple(own.loc[own["metric"] == metric, "value"]) for metric in METRICS}
        trials = int(own["trials"].iloc[0])
        lines.setdefault((method, setting, trials, *values.values()), []).append(notebook)
    digits = {metric: summaries.decimals(rows.loc[rows["metric"] == metric, "value"]) for metric in METRICS}
    ordered = sorted(lines.items(), key=lambda line: -_mean(line[0][3]))
    cells = []
    for (method, setting, trials, *values), notebooks in ordered:
        name = (
            f"{escape(method)}<br><small>{escape(setting.replace('=', ' = '))}</small>" if setting else escape(method)
        )
        untrained = method in comparing.UNTRAINED
        own = [_cell("method", f"<em>{name}</em>" if untrained else name, method)]
        own += [
            _cell(metric, _interval(scores, digits[metric]), _number(scores)) for metric, scores in zip(METRICS, values)
        ]
        own.append(_cell("n", str(max(map(len, values)))))
        tuned = "" if untrained else f"{trials} trials" if trials else "no"
        own += [_cell("tuned", tuned), _cell("notebook", ", ".join(map(_link, notebooks)))]
        cells.append(f"<tr>{''.join(own)}</tr>")
    return _table(("method", *(f"{metric} (%)" for metric in METRICS), "n", "tuned", "notebook"), cells)


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values) if values else -math.inf


def _number(values: tuple[float, ...]) -> str:
    return f"{_mean(values):.6g}" if values else ""


def _interval(values: tuple[float, ...], digits: int) -> str:
    """The mean, and of enough seeds Student's 95 % interval."""
    if not values:
        return ""
    mean = f"{_mean(values):.{digits}f}"
    if len(values) < MIN_SEEDS:
        return mean
    low, high = t_interval(list(values))
    return f"{mean} <small>{low:.{digits}f} to {high:.{digits}f}</small>"


# --- HTML -------------------------------------------------------------------------------------------------------------


def _link(notebook: str) -> str:
    return f'<a href="notebooks/{notebook}.html">{notebook[:2]}</a>'


def _cell(label: str, html: str, key: str | None = None) -> str:
    """A cell with the heading of its column, for narrow windows, and what it is sorted by if that is not its text."""
    by = "" if key is None else f' data-key="{escape(key)}"'
    return f'<td data-label="{escape(label)}"{by}>{html}</td>'


def _table(head: Iterable[str], rows: Iterable[str], name: str = "") -> str:
    named = f' id="{name}"' if name else ""
    return "\n".join(_table_lines(head, rows, named))


def _table_lines(head: Iterable[str], rows: Iterable[str], named: str) -> Iterator[str]:
    yield f'<div class="table-wrapper" tabindex="0"><table class="docutils sortable"{named}>'
    yield f"<thead><tr>{''.join(f'<th>{escape(heading)}</th>' for heading in head)}</tr></thead>"
    yield "<tbody>"
    yield from rows
    yield "</tbody></table></div>"
