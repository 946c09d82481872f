"""The present code trains what the stored runs of each kind were trained by, see identity.py."""

import json

import identity
import pytest

from experiments.files import repository_root
from experiments.training import records

SPECS, TABLE = identity.specs(), identity.table()


@pytest.mark.filterwarnings("ignore:embeddings have a mean concentration")  # those of so small a network have
@pytest.mark.parametrize("kind", SPECS, ids=lambda kind: " ".join(filter(None, kind)) or "untrained")
def test_the_first_steps_of_a_kind_of_run_stay(kind):
    """If a change was meant, raise `version` of this kind in results/versions.json, `python tests/identity.py --write`,
    and train its runs with `train --rerun`; else take the change back."""
    assert identity.moved(TABLE[kind], identity.first_steps(identity.scaled(SPECS[kind]))) == []


def test_every_kind_on_record_has_a_row():
    assert TABLE.keys() == SPECS.keys() >= identity.on_record().keys()
    trained = {kind[:4] for kind in identity.on_record() if kind[0]}
    assert len(trained) >= 43


def test_a_second_round_of_ccp_begins_within_the_steps():
    longer = [row for kind, row in TABLE.items() if "problem_steps" in kind[-1].split()]
    assert longer and all(len(row["losses"]) == 6 for row in longer)


def test_tolerances_are_those_of_rounding():
    tolerances = sorted(row["tolerance"] for row in TABLE.values())
    assert tolerances[len(tolerances) // 2] == identity.TOLERANCE and tolerances[-2] <= 1e-3 and tolerances[-1] < 1e-2


@pytest.mark.parametrize("part", ["losses", "gradients"])
def test_another_number_is_seen(part):
    kind = next(kind for kind, row in TABLE.items() if row[part])
    found = {name: list(TABLE[kind][name]) for name in identity.VALUES}
    assert identity.moved(TABLE[kind], found) == []
    found[part][-1] *= 1 + 2 * TABLE[kind]["tolerance"]
    assert len(identity.moved(TABLE[kind], found)) == 1
    assert len(identity.moved(TABLE[kind], found | {part: found[part][:-1]})) == 1


def test_versions_name_every_kind_on_record():
    known = json.loads((repository_root() / "results" / "versions.json").read_text(encoding="utf8"))
    on_record = [kind[:3] for kind in identity.on_record()]
    kinds = {records.kind(loss or None, how, None if part == "whole" else part) for loss, how, part in on_record}
    assert kinds <= known.keys()
