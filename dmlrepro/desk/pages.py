"""Pages made from results/: what each notebook found, the index of the notebooks, the ledger, the README's opening.

`python -m dmlrepro pages` writes them and `stale` names those that no longer say what results/ says.
"""

import functools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd

from dmlrepro.desk import catalogue, plan, verdicts
from dmlrepro.evidence import claims, comparing, judging, ledger, saving, sentences, stored, tables
from dmlrepro.files import read_json, repository_root

FINDINGS, INDEX = "findings", "index"  # tags of the cells that are written here
BEGIN, END = "<!-- begin: made by python -m dmlrepro pages -->", "<!-- end -->"
MAIN = {  # whose tables compare many losses under equal conditions, and the paper's own among these
    "10_pfml_retrieval": ("PFML",),
    "20_nivmf_retrieval": ("EL-nivMF", "ProxyAnchor+EL-nivMF"),
}


# --- what a notebook found --------------------------------------------------------------------------------------------


@functools.cache
def findings(name: str) -> list[tuple[str, list[str]]]:
    """The heading of every table of a notebook in results/ and the sentences it allows, the one that carries most
    first; of a notebook without a table, its sentences about all of results/."""
    entry = catalogue.find(name)
    if entry.table is None:
        return [("all of results/", [sentence(verdicts.made()) for sentence in entry.findings])]
    tests = catalogue.claims_of(name)
    said = [
        (each.heading, stored.findings(each.table, tests, name, entry.findings, each.trials, older=each.older))
        for each in verdicts.with_ratios(name)
    ]
    return [(heading, lines) for heading, lines in said if lines]


def findings_text(name: str) -> str:
    """The cell "What we found" of a notebook."""
    lines = ["## What we found", ""]
    for heading, said in findings(name):
        lines += [f"*{heading}*", "", *(f"- {sentence}" for sentence in said), ""]
    if decided := [f"{claim_id} {verdicts.here()[claim_id]}" for claim_id in _own(name)]:
        lines += [f"Verdicts here: {'; '.join(decided)}. At the papers' scale: {_at_papers_scale(name)}."]
    return "\n".join(lines).rstrip()


def _own(name: str) -> list[str]:
    """The claims that a notebook settles."""
    return [claim_id for claim_id, test in catalogue.claims_of(name).items() if test.notebook == name]


def _at_papers_scale(name: str) -> str:
    """ "not run, 37 GPU hours", or the verdicts of the runs of profile paper."""
    words = {each: ledger.verdict(rows, catalogue.claims()[each], ledger.PAPER_SCALE) for each, rows in _by_claim(name)}
    run = {claim_id: word for claim_id, word in words.items() if word != judging.NOT_RUN}
    if run:
        return "; ".join(f"{claim_id} {word}" for claim_id, word in run.items())
    hours = _hours("paper").get(name, 0.0)
    return f"not run, {hours:.0f} GPU hours" if hours >= 1 else "not run"


def _by_claim(name: str = "") -> list[tuple[str, pd.DataFrame]]:
    """The lines of the ledger by claim, of one notebook or of all."""
    lines = verdicts.lines()
    return list((lines[lines["notebook"] == name] if name else lines).groupby("claim_id"))


def forget() -> None:
    """Read results/ anew."""
    findings.cache_clear()
    verdicts.forget()


# --- the index --------------------------------------------------------------------------------------------------------


def index() -> str:
    """A row per notebook: its question, the first thing it found, its claims, and what it costs."""
    lines = ["| notebook | question | found | verdicts here | quick / small / paper |", "|---|---|---|---|---|"]
    for name in catalogue.notebooks():
        said = findings(name)
        found = f"{said[0][1][0]} *({said[0][0]})*" if said else ""
        decided = [verdicts.here()[claim_id] for claim_id in _own(name)]
        cells = (f"[{name}]({name}.ipynb)", _question(name), found, ledger.count_words(decided), _cost(name))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\n{_COST_NOTE}"


_COST_NOTE = (
    "Costs are estimates of `python -m dmlrepro plan`: one core for `quick` and `small`, one A100 for `paper`; a run "
    "that several notebooks share is counted at the first. Verdicts are those here, on the first data set that a claim "
    "names; none is run at the papers' scale."
)


def _question(name: str) -> str:
    first = _notebook(name)["cells"][0]["source"]
    (line,) = [line for line in "".join(first).splitlines() if line.startswith("**Question.**")]
    return line.removeprefix("**Question.**").strip()


def _cost(name: str) -> str:
    return " / ".join(_duration(_hours(profile).get(name, 0.0)) for profile in reversed(saving.PROFILES))


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
    """How many claims have a verdict, which loss came out first where, and what did and did not replicate."""
    words, lines, tests = verdicts.here(), dict(_by_claim()), catalogue.claims()

    def shown(*wanted: str) -> list[str]:
        return [
            f"- {claim_id}, “{claims.statement(claim_id)}”: {_judged_line(line)}"
            for claim_id, word in words.items()
            if word in wanted
            for line in _line_of(lines[claim_id], tests[claim_id], word)
        ]

    retrieval = sum(word == judging.AS_CLAIMED and _about_retrieval(tests[each]) for each, word in words.items())
    said = [
        f"{len(words)} claims of five papers, each judged twice. *At the papers' scale*, {_planned()}. *Here*, on "
        f"parts of their data with small networks: {ledger.count_words(words.values())}; of those as claimed "
        f"{retrieval} are about retrieval. Each with its evidence: [the ledger](notebooks/92_claims.ipynb); as "
        "numbers: [results/claims.csv](results/claims.csv); by notebook: [notebooks/](notebooks/README.md).",
        "",
        *_advice(),
        "",
        "**What did not replicate here?**",
        "",
        *(shown(judging.OTHER_WAY, judging.NO_DIFFERENCE) or ["- Nothing is decided so far."]),
    ]
    if len(opposed := ledger.against(verdicts.lines())):
        each = [f"{_link(line, line.claim_id)} ({_effect(line)}; {line.plain_label})" for line in opposed.itertuples()]
        said.append(f"- Not decided, but with every comparison against the paper: {'; '.join(each)}")
    return "\n".join([*said, "", "**What did?**", "", *(shown(judging.AS_CLAIMED) or ["- Nothing is decided so far."])])


def _line_of(lines: pd.DataFrame, test: claims.ClaimTest, word: str) -> Iterator:
    """The line of a claim that has its verdict."""
    deciding = ledger.lines_that_decide(lines, test)
    return deciding[deciding["verdict"] == word].head(1).itertuples()


def _judged_line(line) -> str:
    shown = f"**{line.verdict}**, {_effect(line)}"
    if " of " in line.direction:  # of its comparisons
        shown += f", {line.direction}"
    reason = "; ".join(each for each in line.reason.split("; ") if each.startswith("read as"))
    return f"{shown}{'; ' if reason else ''}{reason} ({line.plain_label}; {_link(line)})"


def _about_retrieval(test: claims.ClaimTest) -> bool:
    return any(part.about == "training" and part.metric.startswith(claims.RETRIEVAL) for part in test.parts)


def _planned() -> str:
    """How much of the papers' own scale is run."""
    run = (verdicts.lines()["scale"] == ledger.PAPER_SCALE).any()
    hours = sum(_hours("paper").values())
    return "some are run" if run else f"with their data and networks, none is run: {hours:.0f} GPU hours are planned"


def _advice() -> Iterator[str]:
    """The loss with the best mean place over the data sets, and a line per data set."""
    rankings, lines = {}, []
    for dataset, tables_of_it in _comparisons().items():
        table = pd.concat([each.table for each in tables_of_it.values()]).drop_duplicates(tables.IDENTITY)
        numbers = stored.Numbers(table)
        rankings[dataset] = ranked = numbers.ranked(
            [method for method in numbers.methods if method not in comparing.UNTRAINED]
        )
        own = [method for name in tables_of_it for method in MAIN[name]]
        links = ", ".join(f"[{name[:2]}](notebooks/{name}.ipynb)" for name in tables_of_it)
        first = next(iter(tables_of_it.values()))
        few = " (a direction only)" if first.few_seeds else ""
        lines.append(f"- {first.plain_label}{few}: {_places(numbers, ranked, own)} ({links})")
    places: dict[str, list[int]] = {}
    for ranked in rankings.values():
        for place, method in enumerate(ranked, 1):
            places.setdefault(method, []).append(place)
    best = min(places, key=lambda method: (-len(places[method]), sum(places[method])))
    where = ", ".join(
        f"place {ranked.index(best) + 1} of {len(ranked)} on {stored.data_in_words(dataset)}"
        for dataset, ranked in rankings.items()
        if best in ranked
    )
    yield (
        f"**Which loss should I use?** Untuned, {best} has the first mean place: {where}. Tuning may turn this "
        "([22](notebooks/22_nivmf_distances.ipynb)); for images of your own, let "
        "[notebook 01](notebooks/01_your_images.ipynb) choose. R@1 on classes never seen in training, with the same "
        "network, images and steps; no search chose the settings:"
    )
    yield ""
    yield from lines
    if any("as drawn" in line for line in lines):
        yield ""
        yield (
            "*As drawn*: an older set-up, in which PFML's proxies start at norm √D and not, as now, at 1. They turn √D "
            "times more slowly, so its place there is not final."
        )


def _comparisons() -> dict[str, dict[str, stored.Stored]]:
    """Data set -> notebook of MAIN -> its table of most losses and seeds there."""
    found: dict[str, dict[str, stored.Stored]] = {}
    for name in MAIN:
        for each in stored.stored(name):
            losses = set(each.table["method"]) - comparing.UNTRAINED
            if len(losses) > 2:
                found.setdefault(each.table["dataset"].iloc[0], {}).setdefault(name, each)
    return found


def _places(numbers: stored.Numbers, ranked: list[str], own: Iterable[str]) -> str:
    """The first four with their means, the paper's own losses wherever they stand, and the untrained network."""
    said = [f"{method} {numbers.mean(method):.1f}" for method in ranked[:4]]
    for method in own:
        if method in ranked[4:]:
            said.append(f"{method} {numbers.mean(method):.1f} (place {ranked.index(method) + 1} of {len(ranked)})")
        elif method not in ranked:
            levels = numbers.cells.get((method, "R@1"), {})
            said += [f"{method} {numbers.mean(str(each)):.1f} ({each.setting.replace('=', ' ')})" for each in levels]
    untrained = f"; not trained {numbers.mean('untrained'):.1f}" if "untrained" in numbers.methods else ""
    return ", ".join(said) + untrained


def _effect(line) -> str:
    """ "PFML vs ProxyAnchor: R@1 -2.8, 95 % -4.0 to -1.6, n = 5"; of a comparison with a constant the value itself."""
    compared = line.compared
    name = compared.subject if compared.baseline.is_constant else compared.name
    return f"{name}: {line.metric} {sentences.numbers(compared)}"


def _link(line, text: str = "") -> str:
    return f"[{text or line.notebook[:2]}](notebooks/{line.notebook}.ipynb)"


# --- files ------------------------------------------------------------------------------------------------------------


def made() -> dict[Path, str]:
    """Every file that holds made text, as it should be."""
    root = repository_root()
    files = {root / "notebooks" / "README.md": _index_page()}
    if verdicts.differences():
        files[verdicts.path()] = verdicts.csv()
    files[root / "README.md"] = _between((root / "README.md").read_text(encoding="utf8"), opening())
    listed = index()
    for name in catalogue.notebooks():
        files[_path(name)] = _with_cells(name, {FINDINGS: findings_text(name), INDEX: listed})
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
        saving.write_text(path, texts[path])
    return changed


def _path(name: str) -> Path:
    return repository_root() / "notebooks" / f"{name}.ipynb"


def _notebook(name: str) -> dict:
    return read_json(_path(name), "take it from git, or `make notebooks`")


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
