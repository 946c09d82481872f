"""The tests of the claims stand as they were frozen, before the runs that they judge."""

import json
import subprocess

import pytest

from dmlrepro.evidence import claims
from dmlrepro.files import repository_root
from dmlrepro.training import records
from dmlrepro.training.sources import PACKAGE

ROOMS = sorted(path.parent.name for path in (PACKAGE / "papers").glob("*/claims.py"))


def git(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", *arguments], cwd=repository_root(), capture_output=True, text=True)


@pytest.fixture(scope="module")
def history():
    """The frozen commit, where the clone has it."""
    commit = claims.frozen()["commit"]
    if git("cat-file", "-e", commit).returncode:
        pytest.skip("a shallow clone has no history")
    return commit


@pytest.mark.parametrize("room", ROOMS)
def test_a_test_may_only_become_stricter_and_is_frozen_anew_then(room):
    assert claims.frozen()["files"][room] == claims.said(room), (
        "tests of claims were frozen: a change must be stricter, say so in `changed`, be committed before the runs it "
        "judges, and stand in data/frozen.json with that commit"
    )


def test_every_run_on_record_is_younger_than_the_tests_that_judge_it(history):
    lines = [json.loads(line) for file in records.files() for line in file.read_text(encoding="utf8").splitlines()]
    for commit in {line["made"]["git_commit"] for line in lines if "run" in line}:
        assert git("merge-base", "--is-ancestor", history, commit).returncode == 0, f"{commit} is older than {history}"


def test_the_frozen_commit_states_these_tests(history):
    for room, digest in claims.frozen()["files"].items():
        shown = git("show", f"{history}:dmlrepro/papers/{room}/claims.py")
        assert claims.fingerprint(shown.stdout) == digest
