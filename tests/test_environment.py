"""The conda environment, the lock and the project file speak of the same packages."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONDA_NAMES = {"pytorch": "torch", "matplotlib-base": "matplotlib", "snakemake-minimal": "snakemake"}


def lock() -> dict[str, str]:
    text = (ROOT / "requirements.lock").read_text()
    return dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", text, re.MULTILINE))


def environment() -> list[tuple[str, str, str]]:
    """(package, version constraint, reason) of every dependency line."""
    text = (ROOT / "environment.yml").read_text()
    return re.findall(r"^  - ([a-z0-9-]+) *([^#\n]*?) *(?:# (.*))?$", text.partition("dependencies:")[2], re.MULTILINE)


def test_every_conda_pin_is_the_locked_version():
    locked = lock()
    pins = [(name, version) for name, version, _ in environment() if version.startswith("=")]
    assert len(pins) > 20
    assert dict(pins) == {name: f"={locked[CONDA_NAMES.get(name, name)]}" for name, _ in pins}


def test_every_direct_dependency_is_in_the_conda_environment_with_a_reason():
    project = re.findall(r'"([a-z0-9-]+)>=', (ROOT / "pyproject.toml").read_text())
    reasons = {CONDA_NAMES.get(name, name): reason for name, _, reason in environment()}
    assert set(project) <= set(reasons) and all(reasons.values())
    channels = (ROOT / "environment.yml").read_text().partition("channels:")[2].partition("dependencies:")[0]
    assert re.findall(r"- (\S+)", channels) == ["conda-forge"]


def test_the_citation_is_of_this_version_and_names_every_paper():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    assert f"\nversion: {project['version']}\n" in citation and f"\nlicense: {project['license']}\n" in citation
    cited = re.findall(r"notes: dmlrepro\.losses\.(\w+)", citation)
    assert len({name for name in cited if (ROOT / "dmlrepro" / "losses" / f"{name}.py").is_file()}) == 5
