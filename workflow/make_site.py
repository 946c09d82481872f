"""What `make site` does: stages pages and notebooks in build/site-src, builds them with Sphinx, and follows every link.

Pages link to one another as they do in the repository. Here a link to a page leads to its HTML, one to a module of the
API to its documentation, and one to any other file to a copy of that file.
"""

import inspect
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml
from sphinx.cmd.build import main as sphinx

from experiments.analysis import claims
from experiments.files import write_text
from experiments.params import Params
from experiments.report import boards

ROOT = Path(__file__).resolve().parents[1]
PAGES = {  # files of the repository that are pages here, beside docs/ and notebooks/
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "data/README.md": "data.md",
    "data/published/NOTES.md": "published.md",
    "results/README.md": "measured.md",
    "examples/README.md": "examples.md",
    "notebooks/README.md": "notebooks/index.md",
}
FOLDERS = {  # and folders of it whose links lead to a page
    "notebooks": "notebooks/index.md",
    "results": "measured.md",
    "benchmarks": "notebooks/93_performance.ipynb",
    "data": "data.md",
    "examples": "examples.md",
    "docs": "index.md",
    "dmlrepro": "api/index.md",
    "dmlrepro/losses": "api/index.md",
    "experiments": "api/index.md",
    "workflow/config": "cluster.md",
    "workflow/profiles": "cluster.md",
}
API = [  # what a user imports
    *(f"dmlrepro.losses.{name}" for name in ("potential_field", "nivmf", "mean_field", "chance_constrained")),
    *(f"dmlrepro.losses.{name}" for name in ("piecewise_linear", "baselines", "unlabelled", "recommended")),
    *(f"dmlrepro.{name}" for name in ("metrics", "retrieval", "samplers", "vmf", "pml", "pml_wrappers")),
    *(f"experiments.{name}" for name in ("timing",)),
    *(f"experiments.training.{name}" for name in ("spec", "runs", "protocols", "search")),
    *(f"experiments.analysis.{name}" for name in ("saving", "stored", "summaries", "tables", "statistics")),
    *(f"experiments.analysis.{name}" for name in ("claims", "judging", "ledger", "goldens")),
]
_LINK = re.compile(r"""(\]\()([^)\s]+)((?:\s+(?:'[^']*'|"[^"]*"))?\))""")  # of Markdown, with a title or without


# --- pages ------------------------------------------------------------------------------------------------------------


def stage(source: Path, notebooks: Iterable[Path], made: dict[str, Callable[[], str]]) -> None:
    """Write all that Sphinx reads into a new folder; `<!-- made: NAME -->` in a page becomes what made[NAME] says, and
    with it the line in italics up to `<!-- end -->`, which readers of the repository see instead."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "docs", source, ignore=shutil.ignore_patterns("__pycache__", "conf.py", "extension.py"))
    for path in source.rglob("*.md"):
        text = path.read_text(encoding="utf8")
        text = re.sub(r"<!-- made: (\w+) -->(\n\*[^\n]*\*\n<!-- end -->)?", lambda found: made[found[1]](), text)
        write_text(path, links_mapped(text, f"docs/{path.relative_to(source)}", source))
    for name, page in PAGES.items():
        if name != "README.md":
            text = (ROOT / name).read_text(encoding="utf8") + _below(name)
            write_text(source / page, links_mapped(text, name, source))
    for path in notebooks:
        write_text(source / "notebooks" / path.name, staged_notebook(path, source))
    for title in API:
        write_text(source / "api" / f"{title}.md", f"# {title}\n\n```{{eval-rst}}\n.. automodule:: {title}\n```\n")


def _below(name: str) -> str:
    """What a page has here beneath its text: the notebooks their order, the examples their code."""
    if name == "notebooks/README.md":
        return "\n```{toctree}\n:hidden:\n:glob:\n\n[0-9]*\n```\n"
    if name == "examples/README.md":
        scripts = sorted((ROOT / "examples").glob("*.py"))
        return "".join(f"\n## {path.name}\n\n```python\n{path.read_text(encoding='utf8')}```\n" for path in scripts)
    return ""


def staged_notebook(path: Path, source: Path) -> str:
    """A notebook whose code is folded and whose links lead to pages."""
    notebook = json.loads(path.read_text(encoding="utf8"))
    notebook["metadata"].setdefault("kernelspec", {"name": "python3", "display_name": "Python 3", "language": "python"})
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["metadata"]["tags"] = [*cell["metadata"].get("tags", ()), "hide-input"]
        else:
            cell["source"] = links_mapped("".join(cell["source"]), f"notebooks/{path.name}", source)
        for output in cell.get("outputs", ()):
            if text := output.get("data", {}).get("text/markdown"):
                output["data"]["text/markdown"] = links_mapped("".join(text), f"notebooks/{path.name}", source)
    return json.dumps(notebook, ensure_ascii=False)


def opening() -> str:
    """What the README says of the results, with its links as seen from docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf8")
    made = re.search(r"<!-- begin[^>]*: made by python -m experiments report -->\n(.*?)<!-- end", text, re.DOTALL)
    if not made:
        raise ValueError("README.md lacks the lines between which `python -m experiments report` writes its answers")
    said = re.sub(r"\[([^\]]*)\]\(#[^)]*\)", r"\1", made[1])  # other sections of the README are no part of a page
    return _LINK.sub(lambda found: f"{found[1]}{_seen_from_docs(found[2])}{found[3]}", said)


def _seen_from_docs(link: str) -> str:
    return link if urlsplit(link).scheme else f"../{link}"


def citations() -> str:
    """CITATION.cff as BibTeX: this repository, and the papers."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
    return "\n\n".join(_bibtex(each) for each in (citation, *citation["references"]))


def _bibtex(entry: dict) -> str:
    kind = {"conference-paper": "inproceedings", "article": "article"}.get(entry["type"], "software")
    names = [each.get("name") or f"{each['family-names']}, {each['given-names']}" for each in entry["authors"]]
    key = f"{names[0].partition(',')[0].split()[-1].lower()}{entry.get('year', '')}{entry['title'].split()[0].lower()}"
    authors = " and ".join(name if "," in name else f"{{{name}}}" for name in names)
    found = {"author": authors, "title": f"{{{entry['title']}}}", "year": entry.get("year")}
    found |= {"booktitle": entry.get("collection-title"), "version": entry.get("version")}
    found |= {"note": ", ".join(each["value"] for each in entry.get("identifiers", ()))}
    fields = ",\n".join(f"  {name} = {{{value}}}" for name, value in found.items() if value)
    return f"@{kind}{{{re.sub(r'[^a-z0-9]', '', key)},\n{fields}\n}}"


def papers() -> str:
    """A toctree of the pages that `python -m experiments report` makes: one per paper, in the order of data/claims.csv,
    and behind them those of docs/ that the start page does not list."""
    order = [*dict.fromkeys(f"papers/{each['paper']}" for each in claims.stated().values())]
    listed = (ROOT / "docs" / "index.md").read_text(encoding="utf8").split()
    found = [f"papers/{path.stem}" for path in sorted((ROOT / "docs" / "papers").glob("*.md"))]
    found.sort(key=lambda name: order.index(name) if name in order else len(order))
    found += [path.stem for path in sorted((ROOT / "docs").glob("*.md")) if path.stem not in (*listed, "index")]
    return "\n".join(["```{toctree}", ":maxdepth: 1", "", *found, "```"])


def parameters() -> str:
    """A row per parameter that every notebook accepts, as Params documents it."""
    entries = re.sub(r"\n +", " ", inspect.getdoc(Params).partition("\n\n")[2]).split("\n")
    rows = [entry.partition(": ")[::2] for entry in entries if re.match(r"\w+: ", entry)]
    lines = (f"| `{name}` | {said.replace('|', chr(92) + '|')} |" for name, said in rows)
    return "\n".join(["| parameter | what it says |", "|---|---|", *lines])


MADE: dict[str, Callable[[], str]] = {
    "opening": opening,
    "claims": boards.claims_table,
    "filters": boards.ledger_filters,
    "leaderboards": boards.leaderboards,
    "papers": papers,
    "parameters": parameters,
    "citations": lambda: f"```bibtex\n{citations()}\n```",
}


# --- links ------------------------------------------------------------------------------------------------------------


def links_mapped(text: str, name: str, source: Path) -> str:
    """The Markdown of a file of the repository, its links as they are on the site."""
    return _LINK.sub(lambda found: f"{found[1]}{_mapped(found[2], name, source)}{found[3]}", text)


def _mapped(link: str, name: str, source: Path) -> str:
    parts = urlsplit(link)
    if parts.scheme or not parts.path:
        return link
    target = (ROOT / name).parent.joinpath(unquote(parts.path)).resolve()
    if not target.is_relative_to(ROOT):
        raise ValueError(f"{name}: {link} leads out of the repository")
    page = _page_of(target.relative_to(ROOT).as_posix())
    if not page:
        if not target.is_file():
            raise ValueError(f"{name}: {link} leads to no file and to no folder of FOLDERS")
        page = f"files/{target.relative_to(ROOT)}"
        (source / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(target, source / page)
    return f"/{page}" + (f"#{parts.fragment}" if parts.fragment else "")


def _page_of(name: str) -> str:
    """The staged page of a file or folder of the repository; empty if it has none."""
    if name.startswith("notebooks/") and name.endswith(".ipynb"):
        return name
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    module = name.removesuffix(".py").replace("/", ".")
    if module in API:
        return f"api/{module}.md"
    if name in PAGES:
        return PAGES[name]
    folders = [Path(name), *Path(name).parents] if (ROOT / name).is_dir() else [Path(name)]
    return next((FOLDERS[folder.as_posix()] for folder in folders if folder.as_posix() in FOLDERS), "")


class _Page(HTMLParser):
    """The links of a page, what a browser loads for it from elsewhere, and what in it can be linked to."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.foreign: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                parts = urlsplit(value)
                if not parts.scheme and not parts.netloc:
                    self.links.append(value)
                elif parts.scheme != "data" and tag != "a":
                    self.foreign.append(value)
            elif name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value or "")


def broken_links(folder: Path) -> Iterator[str]:
    """Every link within a folder of HTML that leads to no file or no anchor, and whatever a page would load from
    elsewhere, as "page: link"."""
    found = {path.resolve(): _Page(path.read_text(encoding="utf8")) for path in sorted(folder.rglob("*.html"))}
    for path, page in found.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            target = path.parent.joinpath(unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            known = found[target].anchors if target in found else {unquote(parts.fragment)}
            if not target.is_file() or unquote(parts.fragment) not in known:
                yield f"{path.relative_to(folder.resolve())}: {link}"
        yield from (f"{path.relative_to(folder.resolve())}: {link} is loaded from elsewhere" for link in page.foreign)


# --- the whole --------------------------------------------------------------------------------------------------------


def build(source: Path, target: Path) -> None:
    """HTML of staged pages; exits where Sphinx warns, or a link is broken."""
    shutil.rmtree(target, ignore_errors=True)
    options = ["-W", "--keep-going", "-q", "-j", "auto", "-d", str(target.with_name(f"{target.name}-doctrees"))]
    if status := sphinx([*options, "-b", "html", "-c", str(ROOT / "docs"), str(source), str(target)]):
        sys.exit(status)
    if broken := list(broken_links(target)):
        sys.exit("links that lead nowhere:\n" + "\n".join(broken))
    print(f"{target / 'index.html'}: {len(list(target.rglob('*.html')))} pages")


if __name__ == "__main__":
    stage(ROOT / "build" / "site-src", sorted((ROOT / "notebooks").glob("*.ipynb")), MADE)
    build(ROOT / "build" / "site-src", ROOT / "build" / "site")
