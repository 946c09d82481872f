"""The profile for SLURM on a cluster of two nodes on this machine; `make slurm-test` runs it."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from official_layouts import write_cub
from slurm import cluster

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not cluster.installed() or importlib.util.find_spec("snakemake_executor_plugin_slurm") is None,
        reason="needs SLURM and Snakemake's executor for it: `make slurm-test` says how",
    ),
]
# runs of a second, on images that are drawn
GRID = """
profile: small
executions:
  - notebooks: [14, 16]
    parameters: {seeds: 2, steps: 3, batch_size: 16, samples_per_class: 4, backbone: conv4, weights: none,
                 train_from: none, image_size: 32}
"""


@pytest.fixture
def copy(tmp_path):
    for part in ("dmlrepro", "experiments", "notebooks", "workflow", "data/published"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (*(ROOT / "data").glob("*.csv"), ROOT / "pyproject.toml"):
        shutil.copy(file, tmp_path / file.relative_to(ROOT))
    (tmp_path / "results").mkdir()
    (tmp_path / "grid.yaml").write_text(GRID)
    write_cub(tmp_path / "images", dict.fromkeys((1, 2, 3, 4, 101, 102, 103), 8))
    return tmp_path


def test_each_seed_of_a_notebook_is_a_job_that_appends_to_the_store(copy):
    profile = ["--profile", str(ROOT / "workflow" / "profiles" / "slurm"), "--configfile", "grid.yaml"]
    here = ["--slurm-no-account", "--slurm-status-command", "squeue", "--seconds-between-status-checks", "2"]
    smaller = ["--set-threads", "seed=1", "notebook=1"]
    own = {"PYTHONPATH": str(copy), "DMLREPRO_CACHE": str(copy / ".cache"), "DMLREPRO_DATA": str(copy / "images")}
    own["DMLREPRO_RECORD"] = "results"  # not that of the tests
    with cluster.running() as environment:
        command = [sys.executable, "-m", "snakemake", *profile, *here, *smaller, "--until", "notebook"]
        done = subprocess.run(command, cwd=copy, env=environment | own, capture_output=True, text=True)
        said = ["squeue", "--states=all", "--noheader", "--Format=State:20,tres-per-job:20"]
        jobs = subprocess.run(said, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(jobs) == 6 and {job.split()[0] for job in jobs} == {"COMPLETED"}, jobs
    assert sum("gpu:1" in job for job in jobs) == 4, jobs  # the seeds
    for number in ("14_pfml_ablation_delta", "16_pfml_ablation_repulsion_radius"):
        lines = (copy / "results" / "small" / "runs" / f"{number}.jsonl").read_text().splitlines()
        runs = [json.loads(line) for line in lines if line.startswith('{"run"')]
        assert {run["spec"]["seed"] for run in runs} == {0, 1}
        assert len(runs) == len({run["run"] for run in runs})
        assert list((copy / "build" / "small").glob(f"{number}*.csv"))
