"""Pages made from results/: what each notebook found, the index of the notebooks, the ledger, and the made parts and
pictures of the README (`readme`) and of the papers' pages (`reports`).

`python -m experiments report` writes them and `stale` names those that no longer say what results/ says.
"""

import base64
import functools
import io
import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from experiments.analysis import judging, ledger, saving, stored
from experiments.files import atomic_write, read_json, repository_root
from experiments.report import catalogue, costs, published, readme, reports, verdicts

FINDINGS, INDEX = "findings", "index"  # tags of the cells that are written here
BEGIN, END = "<!-- begin {}: made by python -m experiments report -->", "<!-- end {} -->"  # around a made part, by name
DPI = 130  # of the pictures of pages


# --- what a notebook found --------------------------------------------------------------------------------------------


@functools.cache
def findings(name: str) -> list[tuple[str, list[str]]]:
    """The heading of every table of a notebook in results/ and the sentences it allows, the one that carries most
    first; of a notebook without a table, its sentences about all of results/."""
    study = catalogue.find(name)
    if not study.saves:
        return [("all of results/", [sentence(verdicts.made()) for sentence in study.findings])]
    sections = [
        (
            saved.heading,
            stored.findings(saved.table, study.claims, name, study.findings, saved.trials, older=saved.older),
        )
        for saved in study.in_results()
    ]
    return [(heading, lines) for heading, lines in sections if lines]


def findings_text(name: str) -> str:
    """The cell "What we found" of a notebook."""
    lines = ["## What we found", ""]
    for heading, sentences in findings(name):
        lines += [f"*{heading}*", "", *(f"- {sentence}" for sentence in sentences), ""]
    if decided := [f"{claim_id} {verdicts.here()[claim_id]}" for claim_id in catalogue.find(name).settled]:
        lines += [f"Verdicts here: {'; '.join(decided)}. At the papers' scale: {_at_papers_scale(name)}."]
    return "\n".join(lines).rstrip()


def _at_papers_scale(name: str) -> str:
    """ "not run", or the verdicts of the runs of profile paper."""
    words = {
        claim_id: ledger.verdict(rows, catalogue.claims()[claim_id], ledger.PAPER_SCALE)
        for claim_id, rows in _by_claim(name)
    }
    run = [f"{claim_id} {word}" for claim_id, word in words.items() if word != judging.Verdict.NOT_RUN]
    return "; ".join(run) or "not run"


def _by_claim(name: str = "") -> list[tuple[str, pd.DataFrame]]:
    """The lines of the ledger by claim, of one notebook or of all."""
    lines = verdicts.lines()
    return list((lines[lines["notebook"] == name] if name else lines).groupby("claim_id"))


def forget() -> None:
    """Read results/ anew, its searches too, which the plan depends on."""
    findings.cache_clear()
    verdicts.forget()
    costs.table.cache_clear()


# --- the index --------------------------------------------------------------------------------------------------------


def index() -> str:
    """A row per notebook: its question, the first thing it found, its claims, and what it costs."""
    lines = ["| notebook | question | found | verdicts here | quick / small / paper |", "|---|---|---|---|---|"]
    for name in catalogue.studies():
        sections = findings(name)
        first = f"{sections[0][1][0]} *({sections[0][0]})*" if sections else ""
        decided = [verdicts.here()[claim_id] for claim_id in catalogue.find(name).settled]
        cells = (f"[{name}]({name}.ipynb)", _question(name), first, ledger.count_words(decided), _cost(name))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\n{_COST_NOTE}"


_COST_NOTE = (
    "Costs are numbers of runs times the median seconds of those on record; for `paper`, hours of one A100 at a stated "
    "throughput (`experiments/report/costs.py`). A run that several notebooks share is counted at the "
    "first. Verdicts are those here, on the first data set that a claim names."
)


def _question(name: str) -> str:
    first = _notebook(name)["cells"][0]["source"]
    (line,) = [line for line in "".join(first).splitlines() if line.startswith("**Question.**")]
    return line.removeprefix("**Question.**").strip()


def _cost(name: str) -> str:
    return " / ".join(_duration(_hours(profile)[name]) for profile in reversed(saving.PROFILES))


def _hours(profile: str) -> dict[str, float]:
    """By notebook, on the data set that it has if nothing is chosen."""
    table = costs.table()
    table = table[(table["profile"] == profile) & table["default"]]
    return dict(zip(table["notebook"], table["hours"]))


def _duration(hours: float) -> str:
    if pd.isna(hours):
        return "–"
    if hours < 1 / 120:
        return "<1 min"
    return f"{60 * hours:.0f} min" if hours < 1 else f"{hours:.0f} h"


# --- what the losses of the library are said to be for ----------------------------------------------------------------

PROMISES = (  # loss, the notebook that asks about its purpose, how the sentence about it begins, what is meant of it
    ("PFML", "11_pfml_label_noise", "pfml-04", "R@1 of PFML"),
    ("EL-nivMF", "24_nivmf_norm_is_certainty", "nivmf-10", "norm_auroc of EL-nivMF"),
    ("MFCWMS", "32_meanfield_conventional", "meanfield-03", "MAP@R of MFCWMS"),
    ("CCP", "41_ccp_retrieval", "ccp-11", "P@1 of MS-CCP-L"),
    ("PLM", "50_plm_retrieval", "plm-01", "R@1 of PLM"),
    ("PLM", "50_plm_retrieval", "Beside the pretrained features", "R@1"),
)


def promises() -> str:
    """A row per promise: what came out, of the table that carries most."""
    rows = [readme.table_row(["loss", "what came out here", "on", "notebook"]), "|---" * 4 + "|"]
    for loss, name, beginning, meant in PROMISES:
        heading, sentences = next(iter(findings(name)), ("–", []))
        said = "nothing by the present code"
        for verdict, _, parts in (sentence.partition(": ") for sentence in sentences if sentence.startswith(beginning)):
            said = f"{verdict}: {next((part for part in parts.split('; ') if meant in part), parts).removesuffix('.')}"
        rows.append(readme.table_row([loss, said, heading, f"[{name[:2]}](../notebooks/{name}.ipynb)"]))
    return "\n".join(rows)


# --- files ------------------------------------------------------------------------------------------------------------


def made() -> dict[Path, str]:
    """Every file that holds made text, as it should be."""
    root = repository_root()
    files = {root / "notebooks" / "README.md": _index_page()}
    if verdicts.differences():
        files |= {verdicts.paths()[name]: text for name, text in verdicts.csv().items()}
    for path, parts in _pages().items():
        files[path] = filled(path, parts)
    listed = index()
    for name in catalogue.studies():
        files[_path(name)] = _with_cells(name, {FINDINGS: findings_text(name), INDEX: listed})
    return files


def _pages() -> dict[Path, dict[str, str]]:
    """The pages in which made parts stand between written ones."""
    root, docs = repository_root(), repository_root() / "docs"
    papers = list(published.papers().index)
    return {
        root / "README.md": readme.parts(),
        docs / "reproduce.md": {"cost": readme.cost()},
        docs / "matrix.md": {"matrix": "\n".join(reports.matrix_table(papers))},
        docs / "library.md": {"promises": promises()},
        docs / "errata.md": {"errata": "\n".join(readme.errata_table(published.errata(), "../"))},
    } | {docs / "papers" / f"{paper}.md": reports.parts(paper) for paper in papers}


def pictures() -> dict[Path, bytes]:
    """Every picture that pages show, by its file, with at most 256 colours."""
    import matplotlib.pyplot as plt
    from PIL import Image

    figures, made = readme.figures(), {}
    for paper, row in published.papers().iterrows():
        figures |= reports.figures(str(paper))
        made[f"{paper}_method"] = picture_of(*row["picture"].split())
    for name, figure in figures.items():
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", dpi=DPI, bbox_inches="tight")
        plt.close(figure)
        made[name] = drawn.getvalue()
    for name, content in made.items():
        small = io.BytesIO()
        pixels = Image.open(io.BytesIO(content)).convert("RGB")
        pixels.quantize(256, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
        made[name] = small.getvalue()
    return {repository_root() / "docs" / "figures" / f"{name}.png": content for name, content in made.items()}


def picture_of(name: str, cell_id: str) -> bytes:
    """The first picture that a cell of a committed notebook shows; ValueError if there is none."""
    outputs = [out for cell in _notebook(name)["cells"] if cell["id"] == cell_id for out in cell.get("outputs", ())]
    images = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    if not images:
        raise ValueError(f"notebook {name} has no picture in a cell {cell_id!r}, which a page shows")
    return base64.b64decode("".join(images[0]))


def stale(texts: dict[Path, str] | None = None) -> list[Path]:
    """The files whose made text is not what results/ says. Pictures are not compared: they are drawn with the text."""
    texts = made() if texts is None else texts
    return [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf8") != text]


def write() -> list[Path]:
    """Write what is stale, and all pictures; returns what had changed."""
    contents = {path: text.encode() for path, text in made().items()} | pictures()
    changed = [path for path, content in contents.items() if not path.exists() or path.read_bytes() != content]
    for path in changed:
        with atomic_write(path) as temporary:
            temporary.write_bytes(contents[path])
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
    made_by = "`python -m experiments report` makes this page from the notebooks and from results/."
    return f"# Notebooks\n\n{made_by}\n\n{index()}\n"


def filled(path: Path, parts: Mapping[str, str]) -> str:
    """The text of a page with its made parts by name; ValueError if it lacks the lines between which one stands."""
    text = path.read_text(encoding="utf8")
    for name, part in parts.items():
        old = made_part(text, name)
        if old is None:
            lines = f"{BEGIN.format(name)!r} and {END.format(name)!r}"
            raise ValueError(f"{path.name} lacks the lines {lines}, between which its made part stands")
        begin, end = BEGIN.format(name), END.format(name)
        text = text.replace(f"{begin}{old}{end}", f"{begin}\n{part}\n{end}")
    return text


def made_part(text: str, name: str) -> str | None:
    """What stands between the lines of a made part of a page; None where they are missing."""
    _, begin, rest = text.partition(BEGIN.format(name))
    part, end, _ = rest.partition(END.format(name))
    return part if begin and end else None
