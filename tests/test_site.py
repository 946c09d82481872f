"""Links between pages lead to files, in the repository and so on the site, which Sphinx builds from the same pages."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "notebooks", "data", "results", "examples")
PAGES = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)(?:\s+(?:'[^']*'|\"[^\"]*\"))?\)")


def texts():
    """(path, Markdown) of every page and notebook."""
    yield from ((path, path.read_text(encoding="utf8")) for path in PAGES)
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        yield path, "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def test_every_link_leads_to_a_file_or_folder_of_the_repository():
    lost = []
    for path, text in texts():
        for link in LINK.findall(re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)):
            parts = urlsplit(link)
            if parts.scheme or not parts.path:
                continue
            target = path.parent.joinpath(unquote(parts.path)).resolve()
            if not (target.is_relative_to(ROOT) and target.exists()):
                lost.append(f"{path.relative_to(ROOT)}: {link}")
    assert lost == []


def test_every_page_is_listed_on_the_site():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf8")
    listed = {(ROOT / "docs" / name).resolve() for name in re.findall(r"^[\w./]+$", index, re.MULTILINE)}
    pages = {path.with_suffix("") for path in (ROOT / "docs").rglob("*.md")} - {ROOT / "docs" / "index"}
    assert pages <= listed and all(path.with_suffix(".md").exists() for path in listed)
    assert len((ROOT / "docs" / "conf.py").read_text(encoding="utf8").splitlines()) <= 60
