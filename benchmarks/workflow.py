"""What an execution of a notebook takes beside its training: papermill by hand, and the workflow.

    python benchmarks/workflow.py            200 executions; writes results/benchmarks/workflow.csv
    python benchmarks/workflow.py --count 6  so many

Every execution is the tour with a number of steps of its own. All are trained first, as the workflow does, so that what
is measured is papermill, the start of a kernel, imports, tables and figures, and in the workflow Snakemake too. Seconds
are of CPU time, of all processes that took part, for one execution; those of training alone stand beside them.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

from experiments.analysis.saving import output_folder
from experiments.files import repository_root

NOTEBOOK = "00_tour"
SHARED = ("dmlrepro", "experiments", "notebooks", "workflow", "data", "pyproject.toml")  # of the repository, by links
SNAKEMAKE = ("-m", "snakemake", "--cores=1", "--configfile=grid.yaml", "--quiet=all")


def main(count: int) -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in SHARED:
            (root / name).symlink_to(repository_root() / name)
        (root / "results").mkdir()
        steps = [20 + i for i in range(count)]
        (root / "grid.yaml").write_text(
            f"profile: quick\nexecutions:\n- notebooks: ['{NOTEBOOK}']\n  over: {{steps: {steps}}}\n"
        )
        trained = measured(root, *SNAKEMAKE, "--until=train")
        by_hand = measured(
            root,
            "-c",
            "import subprocess, sys\nfor steps in sys.argv[1:]: subprocess.run([sys.executable, '-m', 'papermill', "
            f"'notebooks/{NOTEBOOK}.ipynb', 'out.ipynb', '-p', 'steps', steps, '--no-progress-bar'], check=True)",
            *map(str, steps),
        )
        cases = {
            "training, in one pool": trained,
            "papermill by hand, runs in the cache": by_hand,
            "workflow, runs in the cache": measured(root, *SNAKEMAKE, "--until=notebook"),
            "workflow, nothing to do": measured(root, *SNAKEMAKE, "--until=notebook"),
        }
    rows = []
    for case, (cpu, clock) in cases.items():
        rows.append({"case": case, "executions": count, "cpu_seconds": cpu / count, "clock_seconds": clock / count})
        print(f"{case:38} {cpu / count:6.2f} s of CPU time, {clock / count:6.2f} s of the clock for each of {count}")
    return rows


def measured(root: Path, *arguments: str) -> tuple[float, float]:
    """Seconds of CPU time, descendants included, and of the clock that Python takes with these arguments."""
    environment = os.environ | {"PYTHONPATH": str(root), "DMLREPRO_CACHE": "cache", "DMLREPRO_RESULTS": "results"}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    finished = subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if finished.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed: {finished.stdout[-3000:]}")
    clock, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, clock


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="executions (default: 200)")
    options = parser.parse_args()
    harness.write_table(main(options.count), output_folder("benchmarks") / "workflow.csv")
