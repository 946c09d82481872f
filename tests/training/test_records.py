"""Finished runs are lines: trained once on any machine, never lost, not edited unseen, marked when code changed."""

import dataclasses
import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import official_layouts
import pytest
from tiny import TINY

from experiments import cli, studies
from experiments.analysis import results, saving, stored
from experiments.files import repository_root
from experiments.pfml.ablations import Repulsion
from experiments.report import catalogue, searches
from experiments.study import Execution
from experiments.training import checking, keys, loop, protocols, records, runs
from experiments.training.spec import LABELS

SEEDS = [TINY.replace(seed=seed, method="PFML") for seed in range(3)]
UNTRAINED = TINY.replace(loss=None, steps=None, embedding_size=None, method="untrained")
PARAMS = Repulsion.configured({"profile": "small", "seeds": 3})
EXECUTION = Execution(Repulsion, PARAMS)


@pytest.fixture
def file() -> Path:
    path = records.file_of("small", "16_pfml_ablation_repulsion_radius")
    assert path is not None
    return path


@pytest.fixture
def finished(machine, file):
    return runs.run_all(SEEDS, jobs=1, record=file)


@pytest.fixture
def outdated(finished, machine, monkeypatch):
    """Stored runs of a version that the present code is not compatible with, on a machine that has none of them."""
    newer = {"version": 2, "compatible": [2], "sources": {}}
    monkeypatch.setattr(records, "versions", lambda kind: newer)
    machine()
    return finished


def rewrite(file, changed):
    """Put what `changed` makes of each line of a file in its place; None: it goes."""
    kept = [new for line in records.lines(file) if (new := changed(line)) is not None]
    file.write_text("".join(json.dumps(records.summed(line)) + "\n" for line in kept))


def no_training(monkeypatch):
    monkeypatch.setattr(loop, "train", lambda *a, **k: pytest.fail("trained again"))


def test_a_run_on_record_is_trained_on_no_other_machine(finished, machine, file, monkeypatch):
    assert [line["run"] for line in records.lines(file)] == [run.name for run in finished]
    machine()
    no_training(monkeypatch)
    other = file.with_name("10_pfml_retrieval.jsonl")  # of the same profile
    again = runs.run_all(SEEDS, record=other)
    assert [run.rows for run in again] == [run.rows for run in finished]
    assert not any(run.stale for run in again) and not other.exists()
    assert records.file_of("quick", "10_pfml_retrieval") is None
    threads = [run.name for run in runs.run_all([spec.replace(threads=2) for spec in SEEDS], record=other)]
    assert threads == [run.name for run in finished]  # they are where it is trained, not what


def test_what_the_cache_has_is_recorded_once_and_own_images_never(machine, file, monkeypatch):
    runs.run_all(SEEDS, jobs=1)
    assert not file.exists()
    for _ in range(2):
        runs.run_all([*SEEDS, SEEDS[0].replace(method="another label")], record=file)
    assert len(records.lines(file)) == 3
    monkeypatch.setattr(runs.manifests, "is_own", lambda name: True)
    runs.run_all([TINY], jobs=1, record=file.with_name("own.jsonl"))
    assert not file.with_name("own.jsonl").exists()


def test_a_study_that_is_interrupted_goes_on_where_it_was(machine, file, monkeypatch):
    expected = [loop.train(spec) for spec in SEEDS]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "train", Mock(side_effect=[expected[0], KeyboardInterrupt]))
        runs.run_all(SEEDS, jobs=1, record=file)
    assert len(records.lines(file)) == 1
    machine()  # its cache is gone too
    runs.run_all(SEEDS, jobs=1, record=file)
    assert [line["rows"] for line in records.lines(file)] == [outcome.rows for outcome in expected]


def test_a_line_without_its_end_stays_one_and_half_a_line_is_refused_by_name(finished, file):
    file.write_bytes(file.read_bytes()[:-1])
    records.append(file, {"run": "x"})
    assert [line["run"] for line in records.lines(file)] == [*(run.name for run in finished), "x"]
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(ValueError, match=rf"{file.name}, line 4 is not what was written"):
        records.lines(file)


def test_an_edited_line_is_refused_by_name(finished, file):
    text = file.read_text()
    value = json.dumps(finished[1].rows[0]["value"])
    file.write_text(text.replace(value, value[:-1] + str((int(value[-1]) + 1) % 10)))
    with pytest.raises(ValueError, match=rf"{file.name}, line 2 is not what was written: take it from git"):
        runs.run_all(SEEDS, record=file)


def test_equal_lines_merge_and_two_of_one_machine_that_differ_are_refused(finished, file):
    other = file.with_name("elsewhere.jsonl")
    for line in records.lines(file):
        records.append(other, line | {"cost": {"seconds": 1e9}, "described": "other labels"})
    assert [len(lines) for lines in records.of_runs(file.parent).values()] == [1, 1, 1]
    line = records.lines(file)[2]
    rows = [line["rows"][0] | {"value": 0.5}, *line["rows"][1:]]
    records.append(other, line | {"rows": rows})
    with pytest.raises(ValueError, match=rf"{file.name}, line 3 and .*{other.name}, line 4 have different rows"):
        runs.run_all(SEEDS, record=file)


def on_another_machine(line: dict, value: float) -> dict:
    rows = [row | {"value": value} for row in line["rows"]]
    return line | {"rows": rows, "made": line["made"] | {"device": "a GPU"}}


def test_a_comparison_takes_lines_of_one_machine_the_newest_whole_set(finished, machine, file):
    first, second, third = records.lines(file)
    other = file.with_name("elsewhere.jsonl")
    for line in (first, second):
        records.append(other, on_another_machine(line, 0.25))
    values = [run.rows[0]["value"] for run in runs.run_all(SEEDS, record=file)]
    assert values == [line["rows"][0]["value"] for line in (first, second, third)]  # the GPU lacks one
    records.append(other, on_another_machine(third, 0.25))
    assert [run.rows[0]["value"] for run in runs.run_all(SEEDS, record=file)] == [0.25] * 3


def test_without_a_whole_set_each_seed_has_lines_of_one_machine(finished, file):
    first, second, _ = records.lines(file)
    levels = [line | {"run": line["run"][::-1]} for line in (first, second)]
    records.append(file, levels[0])  # this machine lacks a level of the second seed, the GPU one of the first
    for line in (first, second, levels[1]):
        records.append(file.with_name("elsewhere.jsonl"), on_another_machine(line, 0.25))
    names = [line["run"] for line in (first, levels[0], second, levels[1])]
    found = records.find(file.parent, names)
    assert [found[name][0]["rows"][0]["value"] == 0.25 for name in names] == [False, False, True, True]


def test_a_line_has_what_each_test_class_scores(finished, file):
    run = runs.run_all(SEEDS[:1], record=file)[0]
    (line, *_) = records.lines(file)
    queries, first, precision = (
        sum(row[i] * (row[1] if i == 3 else 1) for row in line["per_class"]) for i in (1, 2, 3)
    )
    assert first / queries == pytest.approx(run.metric("R@1"))
    assert precision / queries == pytest.approx(run.metric("MAP@R"))
    counted = results._counts(dataclasses.replace(run, line=None, place=runs.run(SEEDS[0]).place), together=False)
    assert counted == run.correct_per_class


def test_measurements_of_two_machines_merge_if_they_are_equal(finished, file):
    studies.measured(finished[0], spread)
    line = records.lines(file)[-1]
    other = file.with_name("elsewhere.jsonl")
    records.append(other, line)
    studies.measured(finished[0], spread)
    records.append(other, line | {"value": {"norm": 0.5}})
    with pytest.raises(ValueError, match=rf"{other.name}, line 2 has another value of .*spread of PFML"):
        studies.measured(finished[0], spread)


def spread(run, power: float = 1.0) -> dict[str, float]:
    return {"norm": run.embeddings.norm(dim=1).mean().item() ** power}


def test_what_is_measured_on_weights_is_measured_once(finished, machine, file, monkeypatch):
    scored = studies.measured(finished[0], spread, "power=2", power=2.0)
    assert scored.spec.setting == "power=2" and scored.rows[0]["value"] == spread(finished[0])["norm"] ** 2
    machine()
    (run, *_) = runs.run_all(SEEDS, record=file)
    no_training(monkeypatch)
    assert studies.measured(run, spread, "power=2", power=2.0).rows == scored.rows
    monkeypatch.undo()
    other = studies.measured(run, spread)  # another question: it has to be trained for that
    assert other.rows[0]["value"] == pytest.approx(scored.rows[0]["value"] ** 0.5)
    moved = [row | {"value": row["value"] + 0.01} for row in run.rows]
    with pytest.raises(ValueError, match="has other scores than on record"):
        studies.measured(dataclasses.replace(run, rows=moved), spread, "power=3", power=3.0)


def test_folds_are_scored_without_their_weights(machine, file, monkeypatch):
    specs = protocols.expand(TINY, "mlrc")
    before = [entry.rows for entry in protocols.combine(runs.run_all(specs, jobs=1, record=file))]
    machine()
    no_training(monkeypatch)
    assert [entry.rows for entry in protocols.combine(runs.run_all(specs, record=file))] == before


def test_what_a_notebook_measures_is_on_record_when_the_run_is(machine, file, monkeypatch):
    EXECUTION.run(SEEDS, jobs=1)
    machine()
    no_training(monkeypatch)
    finished = EXECUTION.run(SEEDS)
    assert "intra_class_distance" in set(Repulsion.table(finished, PARAMS)["metric"])
    assert set(results.hits(finished, PARAMS)["seed"]) == {0, 1, 2}
    kinds = ["run" if "run" in line else "measured" for line in records.lines(file)]
    assert kinds == ["measured", "run"] * 3  # the run last: without it the others count for nothing


def test_what_is_asked_of_runs_of_another_notebook_is_measured_side_by_side(machine, file, monkeypatch):
    runs.run_all(SEEDS, jobs=1, record=file.with_name("13_pfml_ablation_proxies.jsonl"))
    machine()
    train = Mock(wraps=loop.train)
    monkeypatch.setattr(loop, "train", train)
    before = EXECUTION.run(SEEDS, jobs=1)
    assert [call.args[0].seed for call in train.mock_calls] == [0, 1, 2] and {
        ("run" in line) for line in records.lines(file)
    } == {False}
    assert not any(run.from_cache or run.stale for run in before)
    machine()
    no_training(monkeypatch)
    finished = EXECUTION.run(SEEDS)
    assert [run.rows for run in finished] == [run.rows for run in before]
    assert "intra_class_distance" in set(Repulsion.table(finished, PARAMS)["metric"])


def test_a_part_of_a_study_is_its_whole_seeds(finished, machine, file, monkeypatch, capsys):
    machine()
    rewrite(file, lambda line: None if line["run"] == finished[1].name else line)
    monkeypatch.setenv("DMLREPRO_TRAIN", "0")
    no_training(monkeypatch)
    on_record = EXECUTION.run(SEEDS)
    assert [run.spec.seed for run in on_record] == [0, 2]
    assert f"seeds in {file.name}: 2 of 3" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match=r"1 of 1 runs are not in"):
        EXECUTION.run(SEEDS[1:2])


def test_the_spec_of_a_line_is_that_of_the_run(machine, file):
    runs.run_all([UNTRAINED], record=file)
    assert checking.spec_of(records.lines(file)[-1]) == UNTRAINED
    for name in ("12", "20", "41", "50"):
        study = catalogue.find(name)
        for spec in study.specs_untrained(study.configured({"profile": "paper"})):
            kept = {name: value for name, value in spec.as_dict().items() if keys.is_asked(value)}
            labels = {name: getattr(spec, name) for name in LABELS}
            line = {"spec": kept, "labels": labels, "made": {"threads": spec.threads or 0}}
            assert json.dumps(checking.spec_of(json.loads(json.dumps(line))).as_dict()) == json.dumps(spec.as_dict())


def test_runs_of_another_machine_may_deviate_singly_and_not_all_to_one_side():
    made = dict.fromkeys(checking.KIND_OF_MACHINE, "one")
    values = (0.70, 0.71, 0.72, 0.73)

    def row(value):
        return [{"selection": "last", "metric": "R@1", "step": 1, "value": value}]

    lines = [
        {"described": f"seed {seed}", "spec": {"seed": seed}, "rows": row(value), "made": made}
        for seed, value in enumerate(values)
    ]
    deviation = np.std(values, ddof=1)

    def differs(*shifts):
        trained = [
            SimpleNamespace(made=made | {"rounding": "another"}, rows=row(value + shift * deviation))
            for value, shift in zip(values, shifts)
        ]
        return checking.difference(lines, trained, lines)

    assert differs(2, -2, 1, -1) == ""
    assert differs(0, 0, 0, 3.5).startswith("seed 3: R@1")
    assert differs(1.1, 1.1, 1.1, 1.1).endswith("standard deviations beside theirs on average")
    for shift, message in ((1e-6, "seed 0 has other rows on a machine of the same kind"), (1e-9, "")):
        alike = [SimpleNamespace(made=made, rows=row(value + shift)) for value in values]
        assert checking.difference(lines, alike, lines) == message


def test_a_sample_of_the_runs_of_this_kind_of_device_is_trained_again(finished, machine, file):
    records.append(file.with_name("elsewhere.jsonl"), on_another_machine(records.lines(file)[0], 0.25))
    machine()
    (row,) = checking.check(2, jobs=1)
    assert (row["runs"], row["trained"], row["differ"]) == (3, 2, "")
    rewrite(file, lambda line: line | {"rows": [row | {"value": row["value"] + 0.01} for row in line["rows"]]})
    assert checking.check(1, jobs=1)[0]["differ"].endswith("has other rows on a machine of the same kind")
    assert checking.check(1, ["another kind"]) == []


def test_outdated_runs_are_shown_marked_and_not_trained(outdated, file, monkeypatch):
    no_training(monkeypatch)
    again = runs.run_all(SEEDS, record=file)
    assert [run.rows for run in again] == [run.rows for run in outdated] and all(run.stale for run in again)
    with pytest.raises(ValueError, match=r"seed 0: it was trained by version 1 .*outdated.*train --rerun"):
        _ = again[0].embeddings
    made = saving.made_by(PARAMS, again)
    assert stored.of_older_code(made) and made["trained_by"][0][-1] == 1
    assert made["lines"] == sorted(line["sha256"][:16] for line in records.lines(file))
    assert {*checking.states()["state"]} == {"outdated"}


def test_runs_are_trained_again_beside_those_that_they_supersede(outdated, file, machine):
    again = runs.run_all(SEEDS, record=file, jobs=1, rerun=True)
    assert not any(run.stale for run in again) and {run.version for run in again} == {2}
    assert [line["version"] for line in records.lines(file)] == [1, 1, 1, 2, 2, 2]
    machine()
    assert [run.stale for run in runs.run_all(SEEDS, record=file)] == [False] * 3
    assert not stored.of_older_code(saving.made_by(PARAMS, again))


def test_a_line_without_a_version_has_that_of_its_source(finished, machine, file, monkeypatch):
    def older(line: dict) -> dict:
        return {name: value for name, value in line.items() if name not in ("version", "per_class")} | {"source": "ab"}

    rewrite(file, older)
    machine()
    no_training(monkeypatch)
    assert all(run.stale for run in runs.run_all(SEEDS, record=file))
    known = {"version": 3, "compatible": [2, 3], "sources": {"ab": 2}}
    monkeypatch.setattr(records, "versions", lambda kind: known)
    assert [(run.stale, run.version, records.mark(run.line)) for run in runs.run_all(SEEDS, record=file)] == [
        (False, 2, "ab")
    ] * 3


def test_a_measurement_is_found_by_its_stored_name_and_version_or_that_of_a_table(finished, machine, file, monkeypatch):
    named = records.measurement("spread")(spread)
    try:
        studies.measured(finished[0], named)
        line = records.lines(file)[-1]
        assert line["asked"] == ["spread", {}, 1] and line["of"] == [[finished[0].name, records.mark(finished[0].line)]]
        run = runs.run_all(SEEDS, record=file)[0]
        newer = records.measurement("spread", version=2)(spread)
        assert runs._asks_for_weights(lambda run: studies.measured(run, newer), run)
    finally:
        del spread.measurement
    asked = ["dmlrepro.evidence.results._counts", {"together": False}]
    assert records.asked_by({"asked": [*asked, "814d64176ed03b59"]}) == ["correct_per_class", {"together": False}, 1]
    assert records.asked_by({"asked": [*asked, "0" * 16]}) is None and records.asked_by({"derived": "x"}) is None


def test_a_check_trains_a_sample_of_each_kind_and_names_tables_of_another_search(
    finished, file, machine, capsys, monkeypatch
):
    runs.run_all([UNTRAINED], record=file)
    machine()
    assert cli.main(["records", "check", "--jobs", "1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert sum("2 of 3 runs trained again, the same" in line for line in printed) == 1 and len(printed) == 2
    assert cli.main(["records", "check", "--jobs", "1", "untrained"]) == 0
    assert capsys.readouterr().out.startswith("untrained, supervised, whole network: 1 of 1 runs")
    monkeypatch.setattr(searches, "outdated", lambda: {"small/10.csv": ["PFML--x.json"]})
    assert cli.main(["records", "check", "no kind"]) == 1
    assert "results/small/10.csv rests on another search than PFML--x.json is now" in capsys.readouterr().out


@pytest.mark.parametrize(("faster", "differ"), [(30, "PFML glyphs seed "), (1e33, "2 of 2 runs failed")])
def test_a_check_refuses_what_trains_something_else(faster, differ, finished, machine, monkeypatch, capsys):
    machine()
    train = loop.train
    monkeypatch.setattr(loop, "train", lambda spec, **how: train(spec.replace(lr=faster * spec.lr), **how))
    assert cli.main(["records", "check", "--jobs", "1"]) == 1
    assert differ in capsys.readouterr().out


def test_digests_on_record_are_committed_and_hold_for_the_folder_of_data_that_they_were_made_of(monkeypatch, tmp_path):
    sources = "".join(path.read_text(encoding="utf8") for path in (repository_root() / "experiments").rglob("*.py"))
    tables = {f"data/{name}" for name in re.findall(r'rows_of\("([\w.]+)"\)', sources)} | {"data/digests.json"}
    ignored = subprocess.run(["git", "check-ignore", *tables], cwd=repository_root(), capture_output=True, text=True)
    assert ignored.stdout == "" and len(tables) > 5
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path))
    assert keys.digest_of_data("cub-subset", 0.0, 0, None).startswith("cub-subset:19403bee")
    with pytest.raises(FileNotFoundError):
        keys.digest_of_data("cub-subset", 0.37, 0, None)
    official_layouts.write_cub(tmp_path, {1: 2, 101: 2})
    spec, data = TINY.replace(dataset="cub-subset", images_per_class=None), []
    for folder in (tmp_path, tmp_path / "absent"):  # where the digest on record counts
        monkeypatch.setenv("DMLREPRO_DATA", str(folder))
        data.append(keys.identity_of(spec)["what"]["data"])
    assert data[0] != data[1] == keys.digest_of_data("cub-subset", 0.0, 0, None)
