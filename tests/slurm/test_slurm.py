"""The profile for SLURM on a cluster of two nodes on this machine: job arrays, GPUs, a lost node, a time limit.

`make slurm-test` runs it. Elsewhere it is skipped where SLURM is not installed, see cluster.py.
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from slurm import cluster

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not cluster.installed() or importlib.util.find_spec("snakemake_executor_plugin_slurm") is None,
        reason="needs SLURM and Snakemake's executor for it: `make slurm-test` says how",
    ),
]
# each job notes on which node it starts, and leaves half an output if it is ended
SNAKEFILE = """
NOTE = "echo $SLURMD_NODENAME >> started/{rule}{wildcards}; echo half > {output}; "

rule some:
    input: expand("out/{number}", number=range(3)), "out/gpu", "out/lost"
rule run_short:
    output: "out/{number,[0-9]}"
    resources: mem_mb=100, runtime=5
    shell: NOTE + "echo $SLURM_ARRAY_JOB_ID > {output}"
rule gpu:
    output: "out/gpu"
    resources: mem_mb=100, runtime=5, gpu=1
    shell: NOTE + "echo $CUDA_VISIBLE_DEVICES > {output}"
rule lost:
    output: "out/lost"
    resources: mem_mb=100, runtime=5
    shell: NOTE + "test $(wc -l < started/lost) = 2 || sleep 1000; echo whole > {output}"
rule long:
    output: "out/long"
    resources: mem_mb=100, runtime=lambda wildcards, attempt: attempt
    shell: NOTE + "test $(wc -l < started/long) = 2 || sleep 1000; echo whole > {output}"
rule broken:
    output: "out/broken"
    resources: mem_mb=100, runtime=5
    shell: NOTE + "test -e mended; echo whole > {output}"
"""


@pytest.fixture(scope="module")
def slurm():
    with cluster.running() as running:
        yield running


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "started").mkdir()
    return tmp_path


def submit(slurm, folder: Path, *arguments: str) -> subprocess.Popen:
    """Snakemake with the profile, on this cluster."""
    command = cluster.snakemake(*arguments)
    return subprocess.Popen(
        command, cwd=folder, env=slurm.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def starts(folder: Path, job: str) -> list[str]:
    """The nodes on which a job was started."""
    path = folder / "started" / job
    return path.read_text().split() if path.exists() else []


def test_arrays_and_gpus_are_asked_for_and_a_lost_nodes_jobs_run_on_the_other(slurm, folder):
    process = submit(slurm, folder, "some")
    cluster.wait_for(lambda: starts(folder, "lost"), "the job of which the node is lost has started", 180)
    [node] = starts(folder, "lost")
    slurm.lose_node(node)
    printed = process.communicate(timeout=400)[0]
    assert process.returncode == 0, printed
    assert (folder / "out" / "lost").read_text() == "whole\n"
    assert starts(folder, "lost")[1] != node
    arrays = {(folder / "out" / str(number)).read_text() for number in range(3)}
    assert len(arrays) == 1 and arrays != {"\n"}  # one array for the three
    assert (folder / "out" / "gpu").read_text() == "0\n"
    slurm.start_node(node)
    cluster.wait_for(slurm.ready, "the lost node is back")


def test_a_job_over_its_time_limit_is_named_and_gets_more_the_next_time(slurm, folder):
    process = submit(slurm, folder, "out/long", "out/broken", "--retries", "1", "--keep-going")
    printed = process.communicate(timeout=400)[0]
    assert process.returncode != 0
    assert "SLURM status is: 'TIMEOUT'" in printed and "SLURM status is: 'FAILED'" in printed
    assert (folder / "out" / "long").read_text() == "whole\n"
    assert len(starts(folder, "long")) == len(starts(folder, "broken")) == 2
    assert not (folder / "out" / "broken").exists()  # half of it was there
    (folder / "mended").touch()
    assert submit(slurm, folder, "out/long", "out/broken").wait(200) == 0
    assert (len(starts(folder, "long")), len(starts(folder, "broken"))) == (2, 3)


@pytest.fixture
def copies(tmp_path):
    """Two copies of the repository without any result."""
    for name in ("local", "cluster"):
        for part in ("dmlrepro", "experiments", "notebooks", "workflow", "results", "data/published"):
            shutil.copytree(ROOT / part, tmp_path / name / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "data" / "claims.csv", tmp_path / name / "data")
        shutil.copy(ROOT / "pyproject.toml", tmp_path / name)
    return tmp_path / "local", tmp_path / "cluster"


def test_tables_from_the_cluster_are_those_of_this_machine(slurm, copies):
    """The tour, whose runs are a job array with a GPU each, and two notebooks that train nothing; a cache for each."""
    local = [sys.executable, "-m", "snakemake", "--profile", str(cluster.PROFILE.with_name("local"))]
    commands = [[*local, "--config", "notebooks=00,23,30"]]
    commands.append(cluster.snakemake("--config", "train=jobs", "gpus_per_run=1", "notebooks=00,23,30"))
    tables = []
    for root, command in zip(copies, commands):
        own = {"PYTHONPATH": str(root), "DMLREPRO_CACHE": str(root / ".cache")}
        done = subprocess.run(
            command, cwd=root, env=slurm.environment | own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, done.stdout
        made = [path for path in (root / "build" / "quick").glob("*.csv") if not path.name.endswith(".cost.csv")]
        tables.append({path.name: path.read_bytes() for path in made})
        assert len(list((root / ".cache" / "runs").iterdir())) == 2
    assert len(tables[0]) == 3
    assert tables[0] == tables[1]
