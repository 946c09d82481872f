"""The tests of the claims stand as they were frozen, before the runs that they judge."""

import dataclasses
import hashlib
import json
import re
import subprocess
import types
from typing import Any

import pytest

from experiments.analysis import claims
from experiments.analysis.judging import Verdict
from experiments.files import repository_root
from experiments.report import catalogue, verdicts
from experiments.training import records

# What is said of a test, or of the sentence that it is about, and is no part of what is compared.
REMARKS = ("universal", "ingredient", "revised")
PAPERS = sorted({claim_id.partition("-")[0] for claim_id in claims.frozen()["tests"]})


def canonical(stated: Any) -> Any:
    """A test as plain data: dataclasses with their class and those fields that differ from their default."""
    if dataclasses.is_dataclass(stated):
        fields = {
            field.name: canonical(value)
            for field in dataclasses.fields(stated)
            if field.name not in REMARKS and (value := getattr(stated, field.name)) != field.default
        }
        return {"of": type(stated).__name__} | fields
    if isinstance(stated, dict):
        return {name: canonical(value) for name, value in stated.items()}
    return [canonical(item) for item in stated] if isinstance(stated, tuple) else stated


def digest(test: claims.ClaimTest) -> str:
    """The sha256 of the canonical JSON of what a test decides by, without its controls, as data/frozen.json has it."""
    decides = dataclasses.replace(test, parts=tuple(part for part in test.parts if not part.control))
    return hashlib.sha256(json.dumps(canonical(decides), sort_keys=True).encode()).hexdigest()


def git(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", *arguments], cwd=repository_root(), capture_output=True, text=True)


@pytest.fixture(scope="module")
def history():
    commit = claims.frozen()["commit"]
    if git("cat-file", "-e", commit).returncode:
        pytest.skip("a shallow clone has no history")
    return commit


def test_a_test_that_changes_is_frozen_anew_and_says_why():
    now = {claim_id: digest(test) for claim_id, test in catalogue.claims().items()}
    assert now == claims.frozen()["tests"], (
        "tests of claims were frozen: a change before the runs it judges says so in `changed`, one after them in "
        "`revised`, and both stand in data/frozen.json"
    )


def test_what_is_frozen_tells_a_claim_from_one_with_another_bound():
    test = catalogue.claims()["plm-01"]
    (part,) = test.parts
    weaker = dataclasses.replace(test, parts=(dataclasses.replace(part, smallest_effect=0.4),))
    assert digest(weaker) != digest(test) == digest(dataclasses.replace(test))


def is_younger(commit: str, history: str) -> bool:
    return git("merge-base", "--is-ancestor", history, commit).returncode == 0


def test_every_run_on_record_is_younger_than_the_tests_that_judge_it(history, monkeypatch):
    monkeypatch.delenv("DMLREPRO_RECORD")  # the tests' own is empty
    lines = [json.loads(line) for file in records.files() for line in file.read_text(encoding="utf8").splitlines()]
    commits = {line["made"]["git_commit"] for line in lines if "run" in line}
    assert commits and not [commit for commit in commits if not is_younger(commit, history)]


def test_a_table_that_is_no_pilot_is_younger_too_and_the_ledger_says_which_is_which(history):
    tables = sorted((repository_root() / "results" / "small").glob("*.json"))
    made = {path.stem: json.loads(path.read_text(encoding="utf8"))["git_commit"] for path in tables}
    older = [stem for stem, commit in made.items() if not is_younger(commit, history)]
    assert older == claims.frozen()["pilots"]
    lines = verdicts.lines()
    of_pilots = lines["stem"].isin(older) & (lines["profile"] == "small")
    assert set(lines.loc[of_pilots, "frozen"]) <= {""} and set(lines.loc[~of_pilots, "frozen"]) == {history[:12]}


@pytest.fixture(scope="module")
def as_frozen(history):
    """The tests of the frozen commit, in the notation of today."""
    tests = {}
    for paper in PAPERS:
        shown = git("show", f"{history}:dmlrepro/papers/{paper}/claims.py").stdout
        module = types.ModuleType("claims_as_frozen")
        here = shown.replace("dmlrepro.evidence", "experiments.analysis").replace("dmlrepro.papers", "experiments")
        for before, now in (("reading=", "interpretation="), ("premise=True", "precondition=True")):
            here = re.sub(rf"\b{before}", now, here)
        exec(compile(here, "claims.py", "exec"), vars(module))
        tests |= module.TESTS
    return tests


def test_the_frozen_commit_states_the_tests_that_are_not_revised_and_no_other(as_frozen):
    now = claims.frozen()["tests"]
    revised = {claim_id for claim_id, test in catalogue.claims().items() if test.revised}
    assert {claim_id for claim_id, test in as_frozen.items() if digest(test) != now[claim_id]} == revised


def test_what_a_network_that_came_later_decides_is_marked_as_revised():
    later = verdicts.lines()["backbone"].isin(claims.frozen()["networks"])
    assert later.any() and (verdicts.lines().loc[later, "revised"] != "").all()
    assert verdicts.deciding()["pfml-02"].revised == verdicts.LATER and not catalogue.claims()["pfml-02"].revised


def test_margins_never_move(as_frozen):
    """What decides asks of a metric what the frozen test of the claim asked of it."""

    def asked(parts):
        return {(part.metric, part.smallest_effect, part.margin, part.relative) for part in parts}

    for claim_id, test in catalogue.claims().items():
        assert asked(test.deciding) <= asked(as_frozen[claim_id].parts), claim_id


def test_a_verdict_that_changes_after_it_was_read_is_told():
    first, here = claims.frozen()["first_read"], verdicts.here()
    changed = {claim_id: (word, here[claim_id]) for claim_id, word in first.items() if word != here[claim_id]}
    page = (repository_root() / "docs" / "ledger.md").read_text(encoding="utf8")
    page = page[page.index("## Verdicts that changed") :]
    rows = re.findall(r"^\|(\w+-\d\d)\|([a-z ]+)\|([a-z ]+?)(?: \(\d+ of \d+\))?\|.{10,}\|$", page, re.MULTILINE)
    assert {claim_id: tuple(words) for claim_id, *words in rows} == changed
    assert set(first.values()) <= set(Verdict)
