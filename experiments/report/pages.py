"""Tables of results/ within pages that people write: `python -m experiments report` fills what stands between the lines
`<!-- begin NAME -->` and `<!-- end -->` of a page, and the table of verdicts at the top of every notebook.

A cell holds a name, a number or a verdict; sentences are written by hand. Answers of notebooks are in data/answers.csv.
"""

import functools
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import papers
from experiments.across import ledger as drawn
from experiments.analysis import claims, comparing, robustness, saving, stored, summaries, tables
from experiments.analysis.judging import Verdict
from experiments.analysis.statistics import MIN_SEEDS, t_interval
from experiments.figures.comparisons import MARKS, rankings
from experiments.files import atomic_write, read_json, repository_root
from experiments.report import catalogue, costs, verdicts

ANSWER = "answer"  # tag of the cell with answer and verdicts at the top of a notebook
METRICS = ("R@1", "MAP@R")
SEVERITIES = ("changes results", "changes a formula", "a misprint")


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Markdown, without blanks around the bars."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"|{'|'.join(map(str, line))}|" for line in lines)


def cell(text: str) -> str:
    """A text that Markdown shows in a cell as it is."""
    return "".join(f"\\{letter}" if letter in r"\|*_$[]`~" else letter for letter in escape(text, quote=False))


def _verdict(claim_id: str) -> tuple[str, str, str]:
    """The verdict, the least favourable comparison, and how many of the checks that could be made keep it."""
    word, line = verdicts.here()[claim_id], verdicts.deciding()[claim_id]
    if line is None:
        return word, "", ""
    counted = f" ({line.k} of {line.n})" * (line.n > 0) + ", revised" * bool(line.revised)
    checks = [check for check in verdicts.checked().loc[line.Index, [*robustness.CHECKS]] if check]
    return f"{word}{counted}", cell(summaries.ours(line)), f"{checks.count('yes')}/{len(checks)}" if checks else ""


def verdict_table(claim_ids: Iterable[str]) -> str:
    short = {row["claim_id"]: cell(row["short"]) for row in claims.rows_of("short_claims.csv")}
    rows = [(f"{name} {short[name]}", *_verdict(name)) for name in claim_ids]
    return table(("claim", "verdict (k of n)", "least favourable effect [interval]", "robust"), rows)


def ledger_table() -> str:
    rows = []
    for claim_id, row in claims.stated().items():
        line = verdicts.deciding()[claim_id]
        test, (verdict, _, robust) = catalogue.claims()[claim_id], _verdict(claim_id)
        why = test.not_testable or (line.reason if line is not None else "no runs")
        stated = f"{cell(row['statement'])} ({cell(row['where'])})"
        rows.append((claim_id, stated, verdict, robust, cell(why), _link(test.notebook)))
    return table(("claim", "the paper says", "verdict (k of n)", "robust", "why open", "nb"), rows)


def matrix_table() -> str:
    lines, short = verdicts.lines(), {row["claim_id"]: cell(row["short"]) for row in claims.rows_of("short_claims.csv")}
    other = lines[(lines["decides"] == "yes") & (lines["role"] != "named") & (lines["verdict"] != Verdict.NOT_RUN)]
    rows = []
    for claim_id, word in verdicts.here().items():
        own = other[other["claim_id"] == claim_id]
        elsewhere = [f"{MARKS[line.verdict]} {stored.data_in_words(line.dataset)}" for line in own.itertuples()]
        rows.append((claim_id, short[claim_id], MARKS[word], ", ".join(elsewhere)))
    return table(("claim", "in short", "verdict", "on data that it does not name"), rows)


def counts_table() -> str:
    """The claims by verdict, those whose tests and networks stand as they were frozen apart."""
    here, tests, lines = verdicts.here(), catalogue.claims(), verdicts.deciding()
    rows = []
    for word in Verdict:
        if of := [claim_id for claim_id in here if here[claim_id] == word]:
            fixed = sum(not getattr(lines[claim_id], "revised", tests[claim_id].revised) for claim_id in of)
            rows.append((word, len(of), fixed, ", ".join(of)))
    return table(("verdict", "claims", "test not revised", "which"), rows)


def _link(notebook: str) -> str:
    return f"[{notebook[:2]}](../notebooks/{notebook}.ipynb)"


@functools.cache
def leaderboards() -> dict[str, pd.DataFrame]:
    """Conditions -> a row per method at its one setting: dataset, backbone, protocol, method, the values of METRICS by
    seed, trials of its search and whether they are enough, notebooks; of four trained methods at least, those of most
    seeds first, the highest R@1 on top. Demo runs are left out."""
    parts = []
    for saved in (saved for name in catalogue.studies() for saved in stored.stored(name)):
        if saved.profile == "quick" or saved.older:
            continue
        rows = tables.final_rows(saved.table).query("dataset != @tables.SYNTHETIC and setting != @tables.CURVE")
        rows = rows[rows["metric"].isin(METRICS)]
        levels = rows.groupby(["protocol", "method"])["setting"].transform("nunique")
        rows = rows[(rows["setting"] == "") | (levels == 1)]
        title = saved.plain_label + ", " + rows["protocol"] + " protocol"
        trials = rows["method"].map(saved.trials).fillna(0).astype(int)
        parts.append(rows.assign(notebook=saved.notebook, trials=trials, title=title, seeds=saved.seeds))
    every = pd.concat(parts).sort_values("seeds", ascending=False, kind="stable")
    boards = {title: _board(some) for title, some in every.groupby("title", sort=False)}
    return {title: board for title, board in boards.items() if (~board["untrained"]).sum() >= 4}


def _board(rows: pd.DataFrame) -> pd.DataFrame:
    """Methods that several notebooks share, with one set of runs, stand once."""
    lines: dict[tuple, dict[str, Any]] = {}
    for (method, setting, notebook), some in rows.groupby(["method", "setting", "notebook"], sort=False):
        values = {metric: tuple(some.loc[some["metric"] == metric, "value"]) for metric in METRICS}
        line = some[["dataset", "backbone", "protocol"]].iloc[0].to_dict()
        line |= {"method": f"{method} ({setting})" if setting else method}
        line |= {"tuned": some["trials"].iloc[0] >= comparing.TUNED_OF.get(line["backbone"], comparing.TUNED)}
        line |= {"untrained": method in comparing.UNTRAINED, "notebooks": []}
        key = (method, setting, *values.values())
        lines.setdefault(key, line | {"trials": int(some["trials"].iloc[0])} | values)["notebooks"].append(notebook)
    board = pd.DataFrame(lines.values())
    return board.sort_values("R@1", key=lambda of: of.map(_mean), ascending=False, ignore_index=True)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def leaderboard_tables() -> str:
    sections, head = [], ("method", *(f"{metric} (%)" for metric in METRICS), "n", "trials", "nb")
    for title, board in leaderboards().items():
        rows, again = [], board.sort_values("notebooks", kind="stable")["method"].duplicated().sort_index()
        for row, other in zip(board.to_dict("records"), again):
            values = (row[metric] for metric in METRICS)
            scores = (summaries.with_interval(of, summaries.decimals(of), "±") if of else "" for of in values)
            trials, links = "" if row["untrained"] else row["trials"] or "none", map(_link, row["notebooks"][:2])
            name = tables.CALLED.get(row["method"], row["method"])
            name += f" (notebook {row['notebooks'][0][:2]})" if other else ""  # which gives it settings of its own
            rows.append((cell(name), *scores, len(row["R@1"]), trials, ", ".join(links)))
        sections.append(f"## {title[:1].upper()}{title[1:]}\n\n{table(head, rows)}")
    return "\n\n".join(sections)


def pictures() -> dict[Path, bytes]:
    """The two figures of the README: all verdicts, and the largest conventional leaderboard of each data set and
    network."""
    import matplotlib.pyplot as plt
    from PIL import Image

    largest: dict[str, pd.DataFrame] = {}
    for title, board in leaderboards().items():
        trained = board[~board["untrained"] & (board["protocol"] == "conventional")]
        trained = trained.sort_values("notebooks").drop_duplicates("method")
        known = [other[["dataset", "backbone"]].iloc[0].tolist() for other in largest.values()]
        if len(trained) and trained[["dataset", "backbone"]].iloc[0].tolist() not in known:
            means = {"mean": trained["R@1"].map(_mean)}
            ends = trained["R@1"].map(lambda of: t_interval(list(of)) if len(of) >= MIN_SEEDS else (float("nan"),) * 2)
            means |= {"low": ends.str[0], "high": ends.str[1]}
            floor = _mean(board.loc[board["method"] == "untrained", "R@1"].iloc[0])
            heading = title.removesuffix(", conventional protocol").replace(", ", ",\n", 1)
            largest[heading] = trained.assign(**means, untrained=floor)
    made, matrix = {}, drawn.squares(verdicts.lines(), verdicts.here())
    for name, figure in (("matrix", matrix), ("which_loss", rankings(largest, "R@1", names=papers.names()))):
        page, small = io.BytesIO(), io.BytesIO()
        figure.savefig(page, format="png", dpi=130, bbox_inches="tight")
        plt.close(figure)
        Image.open(page).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
        made[repository_root() / "docs" / "figures" / f"{name}.png"] = small.getvalue()
    return made


LEGEND = (
    "*k of n*: supported comparisons; *robust*: checks that keep the verdict; *revised*: changed after seeing results. "
    "Intervals: 95 %, of equivalences 90 %, of bounds the range ([conventions](../docs/conventions.md))."
)


def top_of(name: str) -> str:
    """The answer that a person wrote, the verdicts of the claims that a notebook settles, and what they rest on."""
    (answer,) = (row["answer"] for row in claims.rows_of("answers.csv") if row["notebook"] == name)
    parts, settled = [answer], catalogue.find(name).settled
    if settled:
        lines = (verdicts.deciding()[claim_id] for claim_id in settled)
        parts.append(verdict_table(settled))
        parts += [f"*{label}*" for label in dict.fromkeys(line.plain_label for line in lines if line is not None)]
        parts.append(LEGEND)
    return "\n\n".join(parts)


def notebooks_table() -> str:
    costs_of = costs.table()
    hours = costs_of[costs_of["default"]].set_index(["profile", "notebook"])["hours"]
    rows = []
    for row in claims.rows_of("answers.csv"):
        name = row["notebook"]
        marks = " ".join(MARKS[verdicts.here()[claim_id]] for claim_id in catalogue.find(name).settled)
        minutes = []
        for spent in (60 * hours[profile, name] for profile in reversed(saving.PROFILES)):
            minutes.append("–" if pd.isna(spent) else "<1" if spent < 1 else f"{spent:,.0f}")
        rows.append((f"[{name}]({name}.ipynb)", row["question"], row["short"], marks, *minutes))
    return table(("notebook", "question", "answer", "verdicts", "quick", "small", "paper"), rows)


def errata_table() -> str:
    """What is wrong in papers and code, what changes results first, with our interpretation and the test of it."""
    rows = []
    for row in sorted(claims.rows_of("errata.csv"), key=lambda row: SEVERITIES.index(row["severity"])):
        file, _, test = row["test"].partition("::")
        where = f"{claims.name_of(row['paper'])}, {row['where']}"
        ours = f"[{row['reading']}](../{row['file']}) ([test](../{file} '{test}'))"
        rows.append((where, row["severity"], row["wrong"].replace("|", r"\|"), ours))
    return table(("where", "severity", "what is wrong", "our interpretation"), rows)


def cost_table() -> str:
    """By paper: hours of `small`, GPU-hours of `paper` by data set, and of the search before."""
    frame = costs.table().assign(paper=lambda rows: rows["paper"].map(claims.name_of))
    small = frame[frame["profile"] == "small"].groupby("paper")["hours"].sum()
    paper = frame[frame["profile"] == "paper"]
    wide = paper.pivot_table(index="paper", columns="dataset", values="hours", aggfunc="sum", sort=False, fill_value=0)
    wide = wide.assign(all=wide.sum(axis=1), tuning=paper.groupby("paper")["tuning_hours"].sum())
    wide.insert(0, "small", small)
    wide = wide.loc[[claims.name_of(name) for name in claims.papers()]].fillna(0)
    rows = [(name, *(f"{value:,.0f}" for value in row)) for name, row in [*wide.iterrows(), ("total", wide.sum())]]
    return table(("paper", *(f"`paper`: {name}" if name in paper["dataset"].array else name for name in wide)), rows)


TABLES: dict[str, Callable[..., str]] = {
    "counts": counts_table,
    "ledger": ledger_table,
    "matrix": matrix_table,
    "leaderboards": leaderboard_tables,
    "notebooks": notebooks_table,
    "errata": errata_table,
    "cost": cost_table,
    "verdicts": lambda paper: verdict_table(name for name in claims.stated() if name.startswith(f"{paper}-")),
}
_PART = re.compile(r"(<!-- begin (\w+)(?: (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """A page with its tables made anew; ValueError on a table of a name that is not in TABLES."""

    def made(found: re.Match) -> str:
        begin, name, argument, end = found.groups()
        if name not in TABLES:
            raise ValueError(f"no table {name!r}; there are {', '.join(TABLES)}")
        return f"{begin}{TABLES[name](*filter(None, [argument]))}\n{end}"

    return _PART.sub(made, text)


def forget() -> None:
    """Read results/ anew, its searches too, which the plan depends on."""
    verdicts.forget()
    for cached in (leaderboards, costs.table):
        cached.cache_clear()


def made() -> dict[Path, str]:
    """Every file that holds made text, as it should be; pictures apart."""
    root = repository_root()
    pages = [root / "README.md", root / "notebooks" / "README.md", *sorted((root / "docs").rglob("*.md"))]
    files = {page: filled(page.read_text(encoding="utf8")) for page in pages}
    if verdicts.differences():
        files |= verdicts.made()
    for name in catalogue.studies():
        path = root / "notebooks" / f"{name}.ipynb"
        notebook = read_json(path, "take it from git, or `make notebooks`")
        for part in notebook["cells"]:
            if ANSWER in part["metadata"].get("tags", ()):
                part["source"] = top_of(name).splitlines(keepends=True)
        files[path] = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    return files


def write() -> list[Path]:
    """Write what is stale, and all pictures; returns what had changed."""
    contents = {path: text.encode() for path, text in made().items()} | pictures()
    changed = [path for path, content in contents.items() if not path.exists() or path.read_bytes() != content]
    for path in changed:
        with atomic_write(path) as temporary:
            temporary.write_bytes(contents[path])
    return changed
