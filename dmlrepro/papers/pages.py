"""Pages made from results/: what each notebook found, the index of the notebooks, the ledger, the README's opening.

`python -m dmlrepro pages` writes them and `stale` names those that no longer say what results/ says.
"""

import functools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd

from dmlrepro.evidence import claims, results, stored, tables
from dmlrepro.files import repository_root
from dmlrepro.papers import catalogue, plan

FINDINGS, INDEX = "findings", "index"  # tags of the cells that are written here
BEGIN, END = "<!-- begin: made by python -m dmlrepro pages -->", "<!-- end -->"
LEDGER = (
    *("claim_id", "verdict", "reason", "direction", "comparison", "metric", "effect", "low", "high", "interval"),
    *("unit", "n", "required", "p_holm", "profile", "label", "backbone", "device", "notebook", "stem"),
)
MAIN = ("10_pfml_retrieval", "20_nivmf_retrieval")  # whose tables compare many losses under equal conditions


# --- what a notebook found --------------------------------------------------------------------------------------------


@functools.cache
def findings(name: str) -> list[tuple[stored.Stored, list[str]]]:
    """Every table of a notebook in results/ with the sentences it allows, the one that carries most first."""
    sentences = catalogue.find(name).findings
    said = [(each, stored.say(each.table, sentences)) for each in with_ratios(name)]
    return [(each, lines) for each, lines in said if lines]


def findings_text(name: str) -> str:
    """The cell "What we found" of a notebook."""
    lines = ["## What we found", ""]
    lines += [f"- *{each.heading}*: {' '.join(said)}" for each, said in findings(name)]
    verdicts = ledger()[ledger()["notebook"] == name]
    if len(verdicts):
        lines += ["", f"Verdicts so far: {'; '.join(_verdicts(verdicts))}."]
    return "\n".join(lines)


def _verdicts(lines: pd.DataFrame) -> Iterator[str]:
    """ "pfml-08, pfml-09 inconclusive": claims by their verdict, the decided ones with where."""
    said: dict[str, list[str]] = {}
    for claim_id, rows in lines.groupby("claim_id"):
        verdict = stored.settled(rows)
        where = "" if verdict in ("inconclusive", "not testable here") else f" on {rows['label'].iloc[0]}"
        said.setdefault(verdict + where.replace(" on no images", ""), []).append(claim_id)
    for verdict, claim_ids in said.items():
        yield f"{', '.join(claim_ids)} {verdict}"


@functools.cache
def ledger() -> pd.DataFrame:
    """Every verdict that results/ allows, as `stored.by_weight` orders them: `Judged.verdicts` with label and stem."""
    papers: dict[str, dict] = {}
    for claim_id, test in catalogue.claims().items():
        papers.setdefault(claim_id.partition("-")[0], {})[claim_id] = test
    found = [
        each.judged(tests).verdicts.assign(label=each.label, stem=each.stem)
        for tests in papers.values()
        for name in dict.fromkeys(test.notebook for test in tests.values())
        for each in with_ratios(name)
    ]
    whole = pd.concat(found, ignore_index=True)
    whole.loc[whole["dataset"] == tables.SYNTHETIC, "label"] = "no images"
    return stored.by_weight(whole)


def with_ratios(name: str) -> list[stored.Stored]:
    """The tables of a notebook in results/, and in them the ratios of costs that its claims are judged by."""
    entry, found = catalogue.find(name), stored.stored(name)
    if entry.ratios is None:
        return found
    return [
        replace(
            each, table=pd.concat([each.table, entry.ratios(each.costs, entry.params.from_values(each.parameters))])
        )
        for each in found
        if each.costs is not None
    ]


def ledger_csv() -> str:
    return ledger()[[*LEDGER]].to_csv(index=False, float_format="%.4g", lineterminator="\n")


# --- the index --------------------------------------------------------------------------------------------------------


def index() -> str:
    """A row per notebook: its question, the first thing it found, its claims, and what it costs."""
    lines = ["| notebook | question | found | verdicts | quick / small / paper |", "|---|---|---|---|---|"]
    for name in catalogue.notebooks():
        said = findings(name)
        found = f"{said[0][1][0]} *({said[0][0].heading})*" if said else ""
        verdicts = [stored.settled(rows) for _, rows in ledger()[ledger()["notebook"] == name].groupby("claim_id")]
        cells = (f"[{name}]({name}.ipynb)", _question(name), found, stored.count_words(verdicts), _cost(name))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\n{_COST_NOTE}"


_COST_NOTE = (
    "Costs are estimates of `python -m dmlrepro plan`: one core for `quick` and `small`, one A100 for `paper`; a run "
    "that several notebooks share is counted at the first. A verdict is that of the table which carries most: of "
    "`paper`, then `small`, then `quick`."
)


def _question(name: str) -> str:
    first = _notebook(name)["cells"][0]["source"]
    (line,) = [line for line in "".join(first).splitlines() if line.startswith("**Question.**")]
    return line.removeprefix("**Question.**").strip()


def _cost(name: str) -> str:
    return " / ".join(_duration(_hours(profile).get(name, 0.0)) for profile in reversed(stored.PROFILES))


@functools.cache
def _hours(profile: str) -> dict[str, float]:
    table, _ = plan.table_of(list(catalogue.notebooks()), lambda params: params.from_values({"profile": profile}))
    return table.groupby("notebook")["hours"].sum().to_dict()


def _duration(hours: float) -> str:
    if hours < 1 / 120:
        return "<1 min"
    return f"{60 * hours:.0f} min" if hours < 1 else f"{hours:.0f} h"


# --- the README's opening ---------------------------------------------------------------------------------------------


def opening() -> str:
    """The ledger's counts, which loss came out first where, and what did not replicate."""
    by_claim = dict(list(ledger().groupby("claim_id")))
    settled = {claim_id: stored.settled(rows) for claim_id, rows in by_claim.items()}
    counts = stored.count_words(settled.values())
    lines = [f"Of {len(settled)} claims tested so far: {counts} ([results/claims.csv](results/claims.csv))."]
    lines += ["", "**Which loss should I use?** Under equal conditions, R@1 on classes never seen in training:", ""]
    lines += [f"- {line}" for line in _first_places()]
    lines += ["", "**What did not replicate?**", ""]
    against = [claim_id for claim_id, verdict in settled.items() if "contradicted" in verdict or "depends" in verdict]
    lines += [f"- {_contradiction(by_claim[claim_id])}" for claim_id in against]
    return "\n".join(lines)


def _first_places() -> Iterator[str]:
    for name in MAIN:
        for each in stored.stored(name):
            numbers = stored.Numbers(each.table)
            methods = numbers.ranked([method for method in numbers.methods if method != "untrained"])
            if len(methods) < 3:
                continue
            ranking = ", ".join(f"{method} {numbers.mean(method):.1f}" for method in methods[:4])
            untrained = f"; untrained {numbers.mean('untrained'):.1f}" if "untrained" in numbers.methods else ""
            yield f"{each.heading}: {ranking}{untrained} ([{name[:2]}](notebooks/{name}.ipynb))"


def _contradiction(lines: pd.DataFrame) -> str:
    line = lines[lines["verdict"].isin(["contradicted", "depends on the reading"])].iloc[0]
    statement = claims.statement(line.claim_id)
    shown = f"{line.verdict}, {line.reason}" if line.reason else line.verdict
    link = f"[{line.notebook[:2]}](notebooks/{line.notebook}.ipynb)"
    return f"{line.claim_id}, “{statement}”: {shown} ({line.label}; {link})"


# --- files ------------------------------------------------------------------------------------------------------------


def made() -> dict[Path, str]:
    """Every file that holds made text, as it should be."""
    root = repository_root()
    files = {root / "results" / "claims.csv": ledger_csv(), root / "notebooks" / "README.md": _index_page()}
    files[root / "README.md"] = _between((root / "README.md").read_text(encoding="utf8"), opening())
    for name in catalogue.notebooks():
        files[_path(name)] = _with_cells(name, {FINDINGS: findings_text(name), INDEX: index()})
    return files


def stale(texts: dict[Path, str] | None = None) -> list[Path]:
    """The files whose made text is not what results/ says."""
    return [
        path for path, text in (texts or made()).items() if not path.exists() or path.read_text(encoding="utf8") != text
    ]


def write() -> list[Path]:
    """Write what is stale; returns it."""
    texts = made()
    changed = stale(texts)
    for path in changed:
        results.write_text(path, texts[path])
    return changed


def _path(name: str) -> Path:
    return repository_root() / "notebooks" / f"{name}.ipynb"


def _notebook(name: str) -> dict:
    return json.loads(_path(name).read_text(encoding="utf8"))


def _with_cells(name: str, texts: dict[str, str]) -> str:
    notebook = _notebook(name)
    for cell in notebook["cells"]:
        for tag in texts.keys() & set(cell["metadata"].get("tags", ())):
            cell["source"] = texts[tag].splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _index_page() -> str:
    made_by = "`python -m dmlrepro pages` makes this page from the notebooks and from results/."
    return f"# Notebooks\n\n{made_by}\n\n{index()}\n"


def _between(text: str, made_text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"README.md lacks the lines {BEGIN!r} and {END!r}, between which its made part stands")
    return f"{before}{BEGIN}\n{made_text}\n{END}{after}"
