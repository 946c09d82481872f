"""What `make results` does: it builds a profile, or goes on with it wherever an earlier build was cut off.

    python workflow/build.py [PROFILE [NOTEBOOKS]]      # names or numbers with commas between; default: quick, all

One build of a profile runs at a time. Its lock ends with its process, unlike that of Snakemake, which is left out. So
whoever holds the lock knows that processes which are marked as part of this build were left behind by a killed one.
"""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from experiments.analysis.saving import damage, table_paths

MARK = "DMLREPRO_BUILD"  # environment variable of all processes of a build: its folder
SNAKEMAKE = "-m snakemake --snakefile workflow/Snakefile --cores all --keep-going --nolock --rerun-incomplete"
SHOWN = "--rerun-triggers mtime params --quiet progress rules"
CONFIGS = Path("workflow", "config")
WORDS = re.compile(r"\w+(,\w+)*", re.ASCII)


def main(profile: str = "quick", notebooks: str = "") -> int:
    refuse(profile, notebooks)
    config = [f"notebooks={notebooks}"] if notebooks else []
    build = Path("build", profile).resolve()
    build.mkdir(parents=True, exist_ok=True)
    with locked(build.with_name(f"{profile}.lock")):
        end_orphans(build)
        undo_edits(build, Path("results", profile))
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches Snakemake too, which ends its jobs
        command = [sys.executable, *SNAKEMAKE.split(), *SHOWN.split(), "--config", f"profile={profile}", *config]
        return subprocess.run(command, env=os.environ | {MARK: str(build)}).returncode


def refuse(profile: str, notebooks: str) -> None:
    """End with a line on an unknown profile, on what cannot be the names of notebooks, or on a damaged notebook."""
    profiles = sorted(path.stem for path in CONFIGS.glob("*.yaml") if path.stem != "schema")
    if profile not in profiles:
        sys.exit(f"PROFILE={profile}: there is no such profile; there are {', '.join(profiles)}")
    if notebooks and not WORDS.fullmatch(notebooks):
        sys.exit(f"ONLY={notebooks}: give names or numbers of notebooks with commas between, as in ONLY=00_tour,16")
    if damaged := [str(path) for path in sorted(Path("notebooks").glob("*.ipynb")) if not is_notebook(path)]:
        sys.exit(f"{', '.join(damaged)}: no complete notebook; take it from git")


def locked(path: Path) -> AbstractContextManager:
    """Hold a lock file that names its holder; wait, and say for whom, while another process does."""
    lock = FileLock(path)
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        print(f"process {path.read_text().strip()} builds the same profile: waiting for it to end", flush=True)
        held = lock.acquire()
    path.write_text(f"{os.getpid()}\n")
    return held


def undo_edits(build: Path, results: Path) -> None:
    """Have made anew what was edited, damaged or removed: what a notebook left by it, a published table from that."""
    tables = table_paths(build)
    wrong = {table: damage(table) for table in tables}
    wrong |= {path: f"{path} is no complete notebook" for path in build.glob("*.ipynb") if not is_notebook(path)}
    for path, what in wrong.items():
        if what:
            print(f"{what}: its notebook is executed again", flush=True)
            forget(build, path, "done")
    for table in tables:
        if (what := damage(results / table.name)) and forget(build, table, "published"):
            print(f"published again: {what}", flush=True)


def forget(build: Path, path: Path, mark: str) -> bool:
    """Remove the marks of every execution of the notebook that made a file; whether there were any. The names of an
    execution and of its table may differ by a parameter that says what the profile says."""
    marks = [*build.glob(f"{path.stem.partition('--')[0]}*.{mark}")]
    for file in marks:
        file.unlink()
    return bool(marks)


def is_notebook(path: Path) -> bool:
    try:
        return "cells" in json.loads(path.read_text(encoding="utf8"))
    except ValueError:  # cut short, as by a full disk
        return False


def end_orphans(build: Path) -> None:
    """End the processes that a killed build of this folder left behind: Snakemake, papermill, kernels, workers."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or belongs to somebody else
            if process.environ().get(MARK) == str(build) and process.pid != os.getpid():
                found.append(process)
                process.kill()
    _, alive = psutil.wait_procs(found, timeout=30)
    if found:
        print(f"ended {len(found) - len(alive)} processes that a killed build had left behind", flush=True)
    if alive:
        sys.exit(f"processes of a killed build do not end: {', '.join(str(process.pid) for process in alive)}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
