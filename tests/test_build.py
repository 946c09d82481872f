"""`make results` goes on after a kill, ends what the killed build left behind, and waits for a living one."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
# two jobs one after the other: the second runs in a shell whose child never ends by itself while a file says so
SNAKEFILE = """
rule all:
    input: "build/quick/second"
rule first:
    output: "build/quick/first"
    shell: "echo 1 >> build/started; echo done > {output}"
rule second:
    input: "build/quick/first"
    output: "build/quick/second"
    shell: '''
        echo half > {output}; echo 2 >> build/started
        while test -e build/slow; do sleep 0.1; done
        echo 2 > {output}
        '''
"""


@pytest.fixture
def repository(tmp_path):
    """A repository whose only profile takes as long as build/slow is there."""
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow" / "Snakefile").write_text(SNAKEFILE)
    shutil.copy(ROOT / "workflow" / "build.py", tmp_path / "workflow")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "slow").touch()
    yield tmp_path
    end(marked(tmp_path))


def build(repository: Path) -> subprocess.Popen:
    command = [sys.executable, "workflow/build.py", "quick"]
    return subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def marked(repository: Path) -> list[psutil.Process]:
    """The processes of this repository's builds, but for build.py itself."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("DMLREPRO_BUILD") == str(repository / "build" / "quick"):
                found.append(process)
        except psutil.Error:
            pass
    return found


def end(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, timeout=30)


def wait_for(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


def started(repository: Path) -> list[str]:
    path = repository / "build" / "started"
    return path.read_text().split() if path.exists() else []


def test_a_build_goes_on_after_a_kill_and_ends_what_was_left(repository):
    first = build(repository)
    wait_for(lambda: started(repository) == ["1", "2"])
    first.send_signal(signal.SIGKILL)
    first.wait()
    orphans = marked(repository)
    assert len(orphans) >= 2  # Snakemake and the shell of its job
    (repository / ".snakemake" / "locks").mkdir(exist_ok=True)
    (repository / ".snakemake" / "locks" / "0.output.lock").write_text("build/quick/second\n")  # as Snakemake's own
    second = build(repository)
    wait_for(lambda: started(repository) == ["1", "2", "2"])
    assert not [process for process in orphans if process.is_running()]
    (repository / "build" / "slow").unlink()
    printed = second.communicate(timeout=60)[0]
    assert second.returncode == 0, printed
    assert re.search(r"ended \d+ processes that a killed build had left behind", printed)
    assert (repository / "build" / "quick" / "second").read_text() == "2\n"


def test_a_second_build_says_for_whom_it_waits(repository):
    first = build(repository)
    wait_for(lambda: started(repository) == ["1", "2"])
    second = build(repository)
    line = second.stdout.readline()
    assert line == f"process {first.pid} builds the same profile: waiting for it to end\n"
    assert second.poll() is None and marked(repository)
    (repository / "build" / "slow").unlink()
    assert [each.wait(60) for each in (first, second)] == [0, 0]
    assert started(repository) == ["1", "2"]  # the second found everything done
    second.communicate()


def test_a_published_table_that_was_removed_is_published_again(repository):
    quick = repository / "build" / "quick"
    quick.mkdir()
    (repository / "build" / "slow").unlink()
    (repository / "results" / "quick").mkdir(parents=True)
    for folder in (quick, repository / "results" / "quick"):
        (folder / "a.csv").touch()
    (quick / "published").touch()
    assert build(repository).wait(60) == 0
    assert (quick / "published").exists()
    os.unlink(repository / "results" / "quick" / "a.csv")
    assert build(repository).wait(60) == 0
    assert not (quick / "published").exists()  # so the rule of that name runs


def test_an_edited_table_is_named_and_made_anew(repository):
    """In results/ it is published again, in the build folder its notebook is executed again."""
    quick, results = repository / "build" / "quick", repository / "results" / "quick"
    (repository / "build" / "slow").unlink()
    for folder in (quick, results):
        folder.mkdir(parents=True)
        (folder / "a.csv").write_text("50.0\n")
        (folder / "a.json").write_text(json.dumps({"sha256": hashlib.sha256(b"50.0\n").hexdigest()}))
    (quick / "a.done").touch()
    (quick / "published").touch()
    built(repository)
    assert (quick / "published").exists()
    (results / "a.csv").write_text("60.0\n")
    assert f"published again: {results.relative_to(repository)}/a.csv\n" in built(repository)
    assert not (quick / "published").exists() and (quick / "a.done").exists()
    (quick / "a.csv").write_text("60.0\n")
    assert "quick/a.csv was edited: its notebook is executed again" in built(repository)
    assert not (quick / "a.done").exists()


def built(repository: Path) -> str:
    """What a build that succeeds has printed."""
    process = build(repository)
    printed = process.communicate(timeout=60)[0]
    assert process.returncode == 0, printed
    return printed
