"""`make results` goes on after a kill, ends what the killed build left behind, and waits for a living one."""

import itertools
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from slurm.cluster import wait_for

import build
from experiments.analysis import saving

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
    (tmp_path / "workflow" / "config").mkdir()
    (tmp_path / "workflow" / "config" / "quick.yaml").touch()
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "slow").touch()
    yield tmp_path
    for process in (left := marked(tmp_path)):
        process.kill()
    psutil.wait_procs(left, timeout=30)


def started_build(repository: Path) -> subprocess.Popen:
    command = [sys.executable, "workflow/build.py", "quick"]
    return subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def built(repository: Path) -> str:
    process = started_build(repository)
    printed = process.communicate(timeout=300)[0]
    assert process.returncode == 0, printed
    return printed


def marked(repository: Path) -> list[psutil.Process]:
    """The processes of this repository's builds, but for build.py itself."""
    mark = str(repository / "build" / "quick")
    running = psutil.process_iter(["environ"])  # None of what is another user's or has ended
    return [process for process in running if (process.info["environ"] or {}).get("DMLREPRO_BUILD") == mark]


def started(repository: Path) -> list[str]:
    path = repository / "build" / "started"
    return path.read_text().split() if path.exists() else []


def test_a_build_goes_on_after_a_kill_and_ends_what_was_left(repository):
    first = started_build(repository)
    wait_for(lambda: started(repository) == ["1", "2"], "started")
    first.send_signal(signal.SIGKILL)
    first.wait()
    orphans = marked(repository)
    assert len(orphans) >= 2  # Snakemake and the shell of its job
    (repository / ".snakemake" / "locks").mkdir(exist_ok=True)
    (repository / ".snakemake" / "locks" / "0.output.lock").write_text("build/quick/second\n")  # as Snakemake's own
    second = started_build(repository)
    wait_for(lambda: started(repository) == ["1", "2", "2"], "started")
    assert not [process for process in orphans if process.is_running()]
    (repository / "build" / "slow").unlink()
    printed = second.communicate(timeout=300)[0]
    assert second.returncode == 0, printed
    assert re.search(r"ended \d+ processes that a killed build had left behind", printed)
    assert (repository / "build" / "quick" / "second").read_text() == "2\n"


def test_a_second_build_says_for_whom_it_waits(repository):
    first = started_build(repository)
    wait_for(lambda: started(repository) == ["1", "2"], "started")
    second = started_build(repository)
    line = second.stdout.readline()
    assert line == f"process {first.pid} builds the same profile: waiting for it to end\n"
    assert second.poll() is None and marked(repository)
    (repository / "build" / "slow").unlink()
    assert [process.wait(60) for process in (first, second)] == [0, 0]
    assert started(repository) == ["1", "2"]  # the second found everything done
    second.communicate()


@pytest.fixture
def published(repository):
    (repository / "build" / "slow").unlink()
    for folder in (repository / "build" / "quick", repository / "results" / "quick"):
        folder.mkdir(parents=True)
        for part in saving.PARTS:
            (folder / f"a{part}").write_text("50.0\n")
        saving.seal(folder / "a.csv", {"made": "here"})
    for mark in ("a.done", "a.published"):
        (repository / "build" / "quick" / mark).touch()
    (repository / "build" / "quick" / "a.ipynb").write_text('{"cells": []}')
    assert "again" not in built(repository)
    return repository


def test_whatever_is_not_as_it_was_saved_is_named_and_made_anew(published):
    """In results/ it is published again, in the build folder its notebook is executed again."""
    folders = [published / folder / "quick" for folder in ("build", "results")]
    for part, folder in itertools.product([*saving.PARTS, ".json"], folders):
        path, published_again = folder / f"a{part}", folder == folders[1]
        whole = path.read_bytes()
        for content in (None, b"", whole[: len(whole) // 2], whole[:-1] + b"x", b"{}", b"[1]"):
            path.unlink() if content is None else path.write_bytes(content)
            build.undo_edits(*folders)
            assert (folders[0] / "a.done").exists() == published_again, (path, content)
            assert not (published_again and (folders[0] / "a.published").exists()), (path, content)
            path.write_bytes(whole)
            for mark in ("a.done", "a.published"):
                (folders[0] / mark).touch()
    (folders[0] / "a.csv").write_text("60.0\n")
    (folders[0] / "a.ipynb").write_text('{"cells": [')
    printed = built(published)
    assert "quick/a.csv is " in printed and "quick/a.ipynb is no complete notebook: its notebook is executed" in printed
    assert not (folders[0] / "a.done").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "PROFILE=nosuch: there is no such profile; there are quick"),
        (["../x"], "PROFILE=../x: there is no such profile"),
        (["quick", "16; touch x"], "ONLY=16; touch x: give names or numbers of notebooks with commas"),
        (["quick", "00"], "notebooks/98_cut.ipynb: no complete notebook; take it from git"),
    ],
)
def test_what_make_is_asked_for_is_refused_by_name_before_anything_is_made(repository, arguments, message):
    (repository / "notebooks").mkdir()
    (repository / "notebooks" / "98_cut.ipynb").write_text('{"cells": [')
    before = sorted(repository.rglob("*"))
    asked = subprocess.run([sys.executable, "workflow/build.py", *arguments], cwd=repository, capture_output=True)
    assert asked.returncode == 1 and message in asked.stderr.decode()
    assert sorted(repository.rglob("*")) == before


def test_what_make_is_told_is_never_a_command(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    for name in ("requirements.lock", "pyproject.toml", ".venv/installed"):
        (tmp_path / name).touch()
    python.write_text('#!/bin/sh\nprintf "%s|" "$@" >> said\n')
    python.chmod(0o755)
    bad = "16; touch x $(touch x) `touch x`'\""
    told = [f"{name}={bad.replace('$', '$$')}" for name in ("ONLY", "PROFILE")]
    subprocess.run(["make", "results", *told], cwd=tmp_path, check=True, capture_output=True)
    assert f"workflow/build.py|{bad}|{bad}|" in (tmp_path / "said").read_text()
    assert f"summary|build/{bad}|" in (tmp_path / "said").read_text()
    assert not (tmp_path / "x").exists()
