"""Links between pages lead to files, in the repository and so on the site, which Sphinx builds from the same pages."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "notebooks", "data", "results", "examples")
PAGES = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)(?:\s+(?:'([^']*)'|\"[^\"]*\"))?\)")


def texts():
    yield from ((path, path.read_text(encoding="utf8")) for path in PAGES)
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        yield path, "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def test_every_link_leads_to_a_file_or_folder_of_the_repository_and_to_a_test_that_runs():
    lost, tests = [], 0
    for path, text in texts():
        for link, title in LINK.findall(re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)):
            parts = urlsplit(link)
            if parts.scheme or not parts.path:
                continue
            target = path.parent.joinpath(unquote(parts.path)).resolve()
            found = target.is_relative_to(ROOT) and target.exists()
            if found and title.startswith("test_"):  # neither slow nor skipped
                tests += 1
                marks = re.search(rf"((?:^@.*\n|^[ )].*\n)*)^def {title}\(", target.read_text(encoding="utf8"), re.M)
                found = marks and not re.search(r"^@pytest\.mark\.(slow|skip)", marks[1], re.M)
            if not found:
                lost.append(f"{path.relative_to(ROOT)}: {link} {title}")
    assert lost == [] and tests > 30
