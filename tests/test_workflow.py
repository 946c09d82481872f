"""The workflow, run dry: a change concerns the notebooks that depend on it and no other."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.report import catalogue

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
# they read results/, so they follow whatever is published
AFTER_ALL = {"90_published_vs_ours", "92_claims", "93_performance"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("repository")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("dmlrepro", "experiments", "notebooks", "workflow", "results", "data/published"):
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    for table in (ROOT / "data").glob("*.csv"):
        shutil.copy(table, root / "data")
    shutil.copy(ROOT / "pyproject.toml", root)
    build = root / "build" / "quick"
    build.mkdir(parents=True)
    now = time.time()
    saving = [name for name in NOTEBOOKS if name not in AFTER_ALL]
    outputs = [f"{name}{end}" for end in (".trained", ".ipynb", ".done", ".published") for name in saving]
    outputs += [f"{name}{end}" for end in (".trained", ".ipynb", ".done") for name in AFTER_ALL]
    for age, name in enumerate(reversed(outputs)):
        (build / name).touch()
        os.utime(build / name, (now - 60 - age / 10,) * 2)
    for path in root.rglob("*"):
        if path.is_file() and build not in path.parents:
            os.utime(path, (now - 3600,) * 2)
    return root


def dry_run(root: Path, *config: str, profile: str = "quick") -> str:
    command = [sys.executable, "-m", "snakemake", "--snakefile", "workflow/Snakefile", "--dry-run", "--cores", "1"]
    command += ["--rerun-triggers", "mtime", "params", "--config", f"profile={profile}", *config]
    environment = os.environ | {"PYTHONPATH": str(root)}
    finished = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    text = finished.stdout + finished.stderr
    assert finished.returncode == 0, text
    return text


def planned(root: Path, *config: str) -> set[str]:
    """Rules that a dry run would execute, and the notebooks among them by name."""
    text = dry_run(root, *config)
    rules = set(re.findall(r"^(?:local)?rule (\w+):", text, re.MULTILINE)) - {"all"}
    return (rules - {"notebook"}) | set(re.findall(r"output: build/quick/(\w+)\.ipynb", text))


def after_touching(root: Path, name: str) -> set[str]:
    path = root / name
    before = path.stat().st_mtime
    os.utime(path)
    try:
        return planned(root)
    finally:
        os.utime(path, (before, before))


def test_nothing_changed_is_nothing_to_do(built):
    assert planned(built) == set()


def test_a_paper_concerns_its_notebooks_and_those_across_papers(built):
    nivmf, across = ({name for name in NOTEBOOKS if re.search(part, name)} for part in ("_nivmf_", "^[09]"))
    assert len(nivmf) >= 7
    assert after_touching(built, "experiments/nivmf/methods.py") == {"train", "publish"} | nivmf | across | AFTER_ALL


def test_a_notebook_concerns_itself_and_a_new_one_is_built_whatever_its_age(built):
    # its parameters may have changed, and with them its runs
    copy = built / "notebooks" / "99_copy.ipynb"
    shutil.copy2(built / "notebooks" / "16_pfml_ablation_repulsion_radius.ipynb", copy)
    try:
        expected = {"train", "publish", "14_pfml_ablation_delta", "99_copy"} | AFTER_ALL
        assert after_touching(built, "notebooks/14_pfml_ablation_delta.ipynb") == expected
    finally:
        copy.unlink()


def test_a_table_of_results_concerns_those_that_read_it_alone_and_a_published_one_makes_nobody_train(built):
    assert after_touching(built, "results/quick/10_pfml_retrieval.csv") == AFTER_ALL
    assert after_touching(built, "data/claims.csv") == {"publish", *NOTEBOOKS}


def test_what_was_trained_for_some_notebooks_is_not_taken_for_trained_for_others(built):
    """After a change, one notebook is built alone; the others' runs are trained together when their turn comes."""
    loss, build = built / "dmlrepro" / "losses" / "nivmf.py", built / "build" / "quick"
    flags = [loss, *(build / f"20_nivmf_retrieval{end}" for end in (".trained", ".ipynb", ".done"))]
    before = {path: path.stat().st_mtime for path in flags}
    try:
        for age, path in enumerate(reversed(flags)):
            os.utime(path, (time.time() - 30 - age,) * 2)
        assert planned(built, "notebooks=20_nivmf_retrieval") == {"publish"}
        others = planned(built)
        assert others >= {"train", "22_nivmf_distances"} and "20_nivmf_retrieval" not in others
    finally:
        for path, time_of in before.items():
            os.utime(path, (time_of, time_of))


def test_a_notebook_that_saves_no_table_is_built_without_any(built):
    mark = built / "build" / "quick" / "14_pfml_ablation_delta.published"
    mark.rename(mark.with_suffix(".away"))
    try:
        assert planned(built, "notebooks=92_claims") == set()
        assert planned(built) == {"publish"} | AFTER_ALL
    finally:
        mark.with_suffix(".away").rename(mark)


def test_on_a_cluster_each_seed_of_a_notebook_is_a_job_and_a_search_comes_with_the_first(built):
    text = dry_run(built, "train=seeds", "notebooks=12,30,31", profile="paper")
    marks = re.findall(r"output: build/paper/(\S+)\.seed(\d+)\.trained", text)
    seeds = catalogue.find("12").configured({"profile": "paper"}).seeds
    assert sorted(int(seed) for name, seed in marks if name == "12_pfml_proxy_alignment") == [*range(seeds)]
    assert {name[:2] for name, _ in marks} == {"12", "31"} and seeds > 1
    jobs = [job for job in text.split("rule seed:\n")[1:] if "wildcards: name=31" in job.partition("\n\n")[0]]
    first = {
        re.search(r", seed=(\d+)", job)[1] for job in jobs if ".seed0.trained" not in re.search(r"input: .*", job)[0]
    }
    assert first == {"0"} and len(jobs) > 1
