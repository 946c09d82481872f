"""What `make results` does: it builds a profile, or goes on with it wherever an earlier build was cut off.

One build of a profile runs at a time. Its lock ends with its process, unlike that of Snakemake, which is left out. So
whoever holds the lock knows that processes which are marked as part of this build were left behind by a killed one.
"""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from dmlrepro.evidence.provenance import is_edited

MARK = "DMLREPRO_BUILD"  # environment variable of all processes of a build: its folder
SNAKEMAKE = "-m snakemake --snakefile workflow/Snakefile --cores all --keep-going --nolock --rerun-incomplete"
SHOWN = "--rerun-triggers mtime params --quiet progress rules"


def main(profile: str, *config: str) -> int:
    build = Path("build", profile).resolve()
    build.mkdir(parents=True, exist_ok=True)
    with locked(build.with_name(f"{profile}.lock")):
        end_orphans(build)
        undo_edits(build, Path("results", profile))
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches Snakemake too, which ends its jobs
        command = [sys.executable, *SNAKEMAKE.split(), *SHOWN.split(), "--config", f"profile={profile}", *config]
        return subprocess.run(command, env=os.environ | {MARK: str(build)}).returncode


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file that names its holder; wait, and say for whom, while another process does."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            print(f"process {file.read().strip()} builds the same profile: waiting for it to end", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        print(os.getpid(), file=file, flush=True)
        yield


def undo_edits(build: Path, results: Path) -> None:
    """Have made anew what somebody edited or removed: a table by its notebook, a published one from that."""
    tables = sorted(build.glob("*.csv"))
    for table in filter(is_edited, tables):
        print(f"{table} was edited: its notebook is executed again", flush=True)
        table.with_suffix(".done").unlink(missing_ok=True)
    published = [results / table.name for table in tables]
    lost = [str(path) for path in published if not path.exists() or is_edited(path)]
    if lost and (build / "published").exists():
        print(f"edited or removed, and published again: {', '.join(lost)}", flush=True)
        (build / "published").unlink()


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
