"""Pages made from results/: what each notebook found, the index of the notebooks, the ledger, the README's opening.

`python -m dmlrepro pages` writes them and `stale` names those that no longer say what results/ says.
"""

import functools
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
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
        return [("all of results/", [sentence() for sentence in entry.findings])]
    said = [(each.heading, stored.say(each.table, entry.findings)) for each in with_ratios(name)]
    return [(heading, lines) for heading, lines in said if lines]


def findings_text(name: str) -> str:
    """The cell "What we found" of a notebook."""
    lines = ["## What we found", ""]
    lines += [f"- *{heading}*: {' '.join(said)}" for heading, said in findings(name)]
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
    """Every verdict that results/ allows, as `stored.by_weight` orders them: `Judged.verdicts` with label, plain_label
    and stem."""
    papers: dict[str, dict] = {}
    for claim_id, test in catalogue.claims().items():
        papers.setdefault(claim_id.partition("-")[0], {})[claim_id] = test
    found = [
        each.judged(tests).verdicts.assign(label=each.label, plain_label=each.plain_label, stem=each.stem)
        for tests in papers.values()
        for name in dict.fromkeys(test.notebook for test in tests.values())
        for each in with_ratios(name)
    ]
    if not found:  # results/ has no table yet
        return pd.DataFrame(columns=[*LEDGER, "plain_label", "dataset"])
    whole = pd.concat(found, ignore_index=True)
    whole.loc[whole["dataset"] == tables.SYNTHETIC, ["label", "plain_label"]] = "no images"
    return stored.by_weight(whole.drop_duplicates([*LEDGER]))


def with_ratios(name: str) -> list[stored.Stored]:
    """The tables of a notebook in results/, and in them the ratios of costs that its claims are judged by."""
    entry, found = catalogue.find(name), stored.stored(name)
    if entry.ratios is None:
        return found
    return [each if each.costs is None else replace(each, table=_beside_ratios(entry, each)) for each in found]


def _beside_ratios(entry: catalogue.Notebook, each: stored.Stored) -> pd.DataFrame:
    known = {field.name for field in fields(entry.params)}  # an older version's table may name parameters that are gone
    params = entry.params.from_values({name: value for name, value in each.parameters.items() if name in known})
    return pd.concat([each.table, entry.ratios(each.costs, params)])


def without_verdict() -> dict[str, str]:
    """Every claim of data/claims.csv that the ledger lacks, and why."""
    tests, judged = catalogue.claims(), set(ledger()["claim_id"])
    return {claim_id: _why_without(tests.get(claim_id)) for claim_id in claims.stated() if claim_id not in judged}


def _why_without(test: claims.ClaimTest | None) -> str:
    if test is None:
        return "its paper has no notebooks yet"
    if not test.parts:
        return test.untested_parts
    needed = ", ".join(dict.fromkeys(part.required for part in test.parts))
    return f"no table in results/ has the rows for its test ({test.parts[0].subject}: {needed})"


def ledger_path() -> Path:
    return repository_root() / "results" / "claims.csv"


def ledger_csv() -> str:
    return ledger()[[*LEDGER]].to_csv(index=False, float_format="%.4g", lineterminator="\n")


def ledger_differences() -> list[str]:
    """The claims whose lines in results/claims.csv are not what results/ says: another text, or a number that differs
    by more than one in its last printed digit, as another processor may round it."""
    if not ledger_path().exists():
        return ["all claims"]
    now, there = (
        pd.read_csv(each, dtype=str, keep_default_na=False) for each in (io.StringIO(ledger_csv()), ledger_path())
    )
    if list(now) != list(there) or list(now["claim_id"]) != list(there["claim_id"]):
        return sorted(set(now["claim_id"]) ^ set(there.get("claim_id", ()))) or [
            "the columns or the order of the lines"
        ]
    differs = now != there
    for name in ("effect", "low", "high", "p_holm"):
        one, other = (pd.to_numeric(table[name], errors="coerce") for table in (now, there))
        differs[name] &= ~np.isclose(one, other, rtol=1e-3, atol=1e-9)
    return list(dict.fromkeys(now.loc[differs.any(axis=1), "claim_id"]))


def write_ledger() -> bool:
    """Write results/claims.csv where it does not say what results/ says; returns whether it did not."""
    ledger.cache_clear()
    differs = bool(ledger_differences())
    if differs:
        results.write_text(ledger_path(), ledger_csv())
    return differs


# --- the index --------------------------------------------------------------------------------------------------------


def index() -> str:
    """A row per notebook: its question, the first thing it found, its claims, and what it costs."""
    lines = ["| notebook | question | found | verdicts | quick / small / paper |", "|---|---|---|---|---|"]
    for name in catalogue.notebooks():
        said = findings(name)
        found = f"{said[0][1][0]} *({said[0][0]})*" if said else ""
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
    return " / ".join(_duration(_hours(profile).get(name, 0.0)) for profile in reversed(results.PROFILES))


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
    """How many claims have a verdict, which loss came out first where, and what did not replicate."""
    by_claim = dict(list(ledger().groupby("claim_id")))
    settled = {claim_id: stored.settled(rows) for claim_id, rows in by_claim.items()}
    decided = [verdict for verdict in settled.values() if verdict != "inconclusive"]
    claimed = len(claims.stated())
    lines = [
        f"{claimed} claims of five papers: {len(decided)} have a verdict ({stored.count_words(decided)}), "
        f"{len(settled) - len(decided)} are open, most because their runs were too small or on other data, "
        f"{claimed - len(settled)} not run yet. Each "
        "with its evidence: [the ledger](notebooks/92_claims.ipynb); as numbers: "
        "[results/claims.csv](results/claims.csv); by notebook: [notebooks/](notebooks/README.md).",
        "",
        *_advice(),
        "",
        "**What did not replicate?**" + _at_published_scale(),
        "",
    ]
    against = [claim_id for claim_id, verdict in settled.items() if "contradicted" in verdict or "depends" in verdict]
    lines += [f"- {_contradiction(by_claim[claim_id])}" for claim_id in against]
    opposed = opposing()
    clear = opposed[(opposed["low"] > 0) | (opposed["high"] < 0)]
    said = [
        f"{_link(line, line.claim_id)} ({_effect(line)}{_spread(line)}; {line.plain_label})"
        for line in clear.itertuples()
    ]
    if wide := len(opposed) - len(clear):
        more = "more" if said else "claims"
        said.append(f"{wide} {more} whose intervals reach over zero, see [the ledger](notebooks/92_claims.ipynb)")
    if said:
        lines.append(f"- Not enough for a verdict, but every comparison points against the paper: {'; '.join(said)}")
    lines += ["", "**What did?** Judged as the paper says:", ""]
    supported = [claim_id for claim_id, verdict in settled.items() if verdict == "supported"]
    lines += [
        f"- {claim_id}, “{claims.statement(claim_id)}”: {_effect(line)} ({line.plain_label}; {_link(line)})"
        for claim_id in supported
        for line in by_claim[claim_id].head(1).itertuples()
    ]
    return "\n".join(lines)


def opposing() -> pd.DataFrame:
    """The first ledger line of every open claim that all comparisons speak against, but for those whose premise is not
    shown: of networks that have not learned they say nothing."""
    first = ledger().drop_duplicates("claim_id")
    against = (first["verdict"] == "inconclusive") & (first["direction"] == "not as claimed")
    return first[against & ~first["reason"].str.contains("premise: ")]


def _at_published_scale() -> str:
    if (ledger()["profile"] == "paper").any():
        return ""
    return (
        " Nothing was run at the published scale (ResNet-50 on the full sets) so far, so whether a paper's loss beats "
        "all others is undecided."
    )


def _advice() -> Iterator[str]:
    """The loss with the best mean place over the data sets, and a line per data set."""
    rankings, lines = {}, []
    for dataset, tables_of_it in _comparisons().items():
        table = pd.concat([each.table for each in tables_of_it.values()]).drop_duplicates(tables.IDENTITY)
        numbers = stored.Numbers(table)
        rankings[dataset] = ranked = numbers.ranked([method for method in numbers.methods if method != "untrained"])
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
        f"**Which loss should I use?** Untuned, {best} is the safest guess: {where}. Tuning may turn this "
        "([22](notebooks/22_nivmf_distances.ipynb)); for images of your own, let "
        "[notebook 01](notebooks/01_your_images.ipynb) choose. R@1 on classes never seen in training, with the same "
        f"network, images and steps; {_tuned()}:"
    )
    yield ""
    yield from lines
    if any("as drawn" in line for line in lines):
        yield ""
        yield (
            "*As drawn*: an older set-up, in which PFML's proxies start at norm √D and not, as now, at 1. They turn √D "
            "times more slowly, so its place there is not final."
        )


def _tuned() -> str:
    """Which losses had their settings chosen by how many trials, as the tests of the claims count them."""
    trials: dict[str, int] = {}
    for test in catalogue.claims().values():
        trials |= test.trials
    had = ", ".join(f"{method} {count}" for method, count in trials.items())
    return f"settings were chosen by trials for some ({had}), for the others by none"


def _comparisons() -> dict[str, dict[str, stored.Stored]]:
    """Data set -> notebook of MAIN -> its table of most losses and seeds there."""
    found: dict[str, dict[str, stored.Stored]] = {}
    for name in MAIN:
        for each in stored.stored(name):
            losses = set(each.table["method"]) - {"untrained"}
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
            settings = numbers.cells.get((method, "R@1"), {})
            said += [f"{method} {numbers.mean(f'{method};{each}'):.1f} ({each.replace('=', ' ')})" for each in settings]
    untrained = f"; not trained {numbers.mean('untrained'):.1f}" if "untrained" in numbers.methods else ""
    return ", ".join(said) + untrained


def _contradiction(lines: pd.DataFrame) -> str:
    line = lines[lines["verdict"].isin(["contradicted", "depends on the reading"])].iloc[0]
    shown = line.reason if "depends" in line.verdict else f"{_effect(line)}, required: {line.required}"
    if " of " in line.direction and "depends" not in line.verdict:
        shown += f"; {line.direction}"  # of its comparisons
    said = f"{line.claim_id}, “{claims.statement(line.claim_id)}”: **{line.verdict}**, {shown}"
    return f"{said} ({line.plain_label}; {_link(line)})"


def _effect(line) -> str:
    """ "PFML vs ProxyAnchor: R@1 -2.8"; of a comparison with a constant the value itself."""
    subject, _, baseline = line.comparison.rpartition(" vs ")
    if tables.is_constant(baseline):
        return f"{subject}: {line.metric} {line.effect:.3g}{line.unit}"
    return f"{line.comparison}: {line.metric} {line.effect:+.1f}{line.unit}"


def _spread(line) -> str:
    return "" if np.isnan(line.low) else f", {line.interval} {line.low:+.1f} to {line.high:+.1f}, n = {line.n}"


def _link(line, text: str = "") -> str:
    return f"[{text or line.notebook[:2]}](notebooks/{line.notebook}.ipynb)"


# --- files ------------------------------------------------------------------------------------------------------------


def made() -> dict[Path, str]:
    """Every file that holds made text, as it should be."""
    root = repository_root()
    files = {root / "notebooks" / "README.md": _index_page()}
    if ledger_differences():
        files[ledger_path()] = ledger_csv()
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
