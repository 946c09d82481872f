"""Finished runs are lines: trained once on any machine, never lost, not edited unseen, marked when code changed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny import TINY

from dmlrepro import cli, metrics
from dmlrepro.datasets import manifests
from dmlrepro.desk import catalogue, searches
from dmlrepro.evidence import provenance, results, saving, stored
from dmlrepro.papers import studies
from dmlrepro.papers.pfml.ablations import Repulsion, RepulsionParams
from dmlrepro.papers.study import Execution
from dmlrepro.training import checking, keys, loop, measurements, protocols, records, runs
from dmlrepro.training.spec import LABELS

SEEDS = [TINY.replace(seed=seed, method="PFML") for seed in range(3)]


@pytest.fixture
def machine(tmp_path, monkeypatch, shared_cache):
    """A function that gives a machine with an empty cache, but for rendered images."""
    manifests._drawn.cache_clear()  # a process keeps what an earlier test may have rendered elsewhere
    manifests.load(TINY.dataset, images_per_class=TINY.images_per_class)

    def anew():
        cache = tmp_path / f"machine{len(list(tmp_path.glob('machine*')))}"
        cache.mkdir()
        for path in shared_cache.iterdir():
            if path.name not in ("runs", "checkpoints", "derived", "embeddings", "locks"):
                (cache / path.name).symlink_to(path)
        monkeypatch.setenv("DMLREPRO_CACHE", str(cache))

    anew()
    return anew


@pytest.fixture
def file() -> Path:
    path = records.file_of("small", "16_pfml_ablation_repulsion_radius")
    assert path is not None
    return path


@pytest.fixture
def finished(machine, file):
    return runs.run_all(SEEDS, jobs=1, record=file)


@pytest.fixture
def older(finished, machine, monkeypatch):
    """Runs on record, by code that is no longer the present one, on a machine that has none of them."""
    true = keys.source_hash
    monkeypatch.setattr(keys, "source_hash", lambda loss, scheme: "f" * 8 + true(loss, scheme)[8:])
    machine()
    return finished


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
    assert torch.equal(again[0].curve, finished[0].curve)
    assert records.file_of("quick", "10_pfml_retrieval") is None
    threads = [run.name for run in runs.run_all([spec.replace(threads=2) for spec in SEEDS], record=other)]
    assert threads == [run.name for run in finished]  # they are where it is trained, not what


def test_what_the_cache_has_is_recorded_once(machine, file):
    runs.run_all(SEEDS, jobs=1)
    assert not file.exists()
    for _ in range(2):
        runs.run_all([*SEEDS, SEEDS[0].replace(method="another label")], record=file)
    assert len(records.lines(file)) == 3


def test_own_images_are_not_recorded(machine, file, monkeypatch):
    monkeypatch.setattr(runs.manifests, "is_own", lambda name: True)
    runs.run_all(SEEDS[:1], jobs=1, record=file)
    assert not file.exists()


def test_weights_of_what_is_on_record_are_trained_again(finished, machine, file, capfd):
    machine()
    (again, *_) = runs.run_all(SEEDS, record=file)
    assert capfd.readouterr().err == ""
    assert torch.equal(again.embeddings, finished[0].embeddings)
    assert "seed 0: on record, trained again for its weights" in capfd.readouterr().err


STUDY = """
import sys; sys.path[:0] = sys.argv[2:]
from pathlib import Path
from types import SimpleNamespace
from tiny import TINY
from dmlrepro.training import keys, runs
if __name__ == "__main__":
    runs.run_all([TINY.replace(seed=seed) for seed in range(6)], jobs=1, record=Path(sys.argv[1]))
"""


def test_a_study_that_is_killed_three_times_goes_on_where_it_was(machine, file, monkeypatch):
    def started():
        command = [sys.executable, "-c", STUDY, str(file), str(Path(__file__).parents[1]), str(Path(__file__).parent)]
        return subprocess.Popen(command, env=os.environ | {"PYTHONUNBUFFERED": "1"})

    for _ in range(3):
        process, before = started(), len(records.lines(file)) if file.exists() else 0
        while not file.exists() or file.read_bytes().count(b"\n") <= before:
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        machine()  # its cache is gone too
    assert started().wait() == 0
    lines = records.lines(file)
    assert len(lines) == 6 == len({line["run"] for line in lines})  # nothing was trained twice
    assert [line["rows"] for line in lines] == [loop.train(TINY.replace(seed=seed)).rows for seed in range(6)]


def test_half_a_line_goes_with_the_next_one(finished, file):
    whole = file.read_bytes()
    file.write_bytes(whole[:-40])
    assert len(records.lines(file)) == 2
    records.append(file, {"run": "x"})
    assert [line["run"] for line in records.lines(file)] == [*(run.name for run in finished[:2]), "x"]


def test_an_edited_line_is_refused_by_name(finished, file):
    text = file.read_text()
    value = json.dumps(finished[1].rows[0]["value"])
    assert text.count(value) >= 1
    file.write_text(text.replace(value, value[:-1] + str((int(value[-1]) + 1) % 10)))
    with pytest.raises(ValueError, match=rf"{file.name}, line 2 is not what was written: take it from git"):
        runs.run_all(SEEDS, record=file)


def test_lines_of_two_machines_merge_if_they_are_equal(finished, file):
    other = file.with_name("elsewhere.jsonl")
    for line in records.lines(file):
        own = {"cost": {"seconds": 1e9}, "made": {**line["made"], "device": "another"}, "described": "other labels"}
        records.append(other, line | own)
    assert len(records.of_runs(file.parent)) == 3
    line = records.lines(file)[2]
    rows = [line["rows"][0] | {"value": 0.5}, *line["rows"][1:]]
    records.append(other, line | {"rows": rows})
    with pytest.raises(ValueError, match=rf"{file.name}, line 3 and .*{other.name}, line 4 have different rows"):
        runs.run_all(SEEDS, record=file)


POWER = 2


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
    return {"norm": helped(run.embeddings) ** (power * POWER / 2)}


def helped(points) -> float:
    return points.norm(dim=1).mean().item()


def test_what_is_measured_on_weights_is_measured_once(finished, machine, file, monkeypatch):
    scored = studies.measured(finished[0], spread, "power=2", power=2.0)
    assert scored.spec.setting == "power=2" and scored.rows[0]["value"] == helped(finished[0].embeddings) ** 2
    machine()
    (run, *_) = runs.run_all(SEEDS, record=file)
    no_training(monkeypatch)
    assert studies.measured(run, spread, "power=2", power=2.0).rows == scored.rows
    monkeypatch.undo()
    other = studies.measured(run, spread)  # another question: it has to be trained for that
    assert other.rows[0]["value"] == pytest.approx(scored.rows[0]["value"] ** 0.5)


def slowly_spread(run) -> float:
    if not hasattr(slowly_spread, "begun"):  # another process measures the same in between
        slowly_spread.begun = True
        records.derived([run], slowly_spread)
    return helped(run.embeddings)


def test_what_another_process_measured_in_between_is_written_once(finished, machine, file):
    (run, *_) = runs.run_all(SEEDS, record=file)
    value = records.derived([run], slowly_spread)
    machine()
    assert [line["value"] for line in records.lines(file) if "derived" in line] == [value]


def test_what_a_measurement_is_kept_under_follows_the_code_it_names(monkeypatch):
    before = records.code_of(spread)
    records.code_of.cache_clear()
    assert records.code_of(spread) == before
    assert metrics.retrieval in records._named_by(retrieved)
    assert [function.__name__ for function in map(records._code, records._named_by(results._counts)) if function] == [
        "nearest"
    ]
    monkeypatch.setitem(globals(), "POWER", 3)
    records.code_of.cache_clear()
    assert records.code_of(spread) != before  # a constant that it names


def retrieved(run) -> dict[str, float]:
    return metrics.retrieval(run.embeddings, torch.zeros(len(run.embeddings), dtype=torch.long))


def test_folds_are_scored_without_their_weights(machine, file, monkeypatch):
    specs = protocols.expand(TINY, "mlrc")
    before = [entry.rows for entry in protocols.combine(runs.run_all(specs, jobs=1, record=file))]
    machine()
    no_training(monkeypatch)
    assert [entry.rows for entry in protocols.combine(runs.run_all(specs, record=file))] == before


def test_what_a_notebook_measures_is_on_record_when_the_run_is(machine, file, monkeypatch):
    EXECUTION.run(SEEDS)
    machine()
    no_training(monkeypatch)
    finished = EXECUTION.run(SEEDS)
    assert "intra_class_distance" in set(Repulsion.table(finished, PARAMS)["metric"])
    assert set(results.hits(finished, PARAMS)["seed"]) == {0, 1, 2}
    kinds = ["run" if "run" in line else "measured" for line in records.lines(file)]
    assert kinds == ["measured", "measured", "run"] * 3  # the run last: without it the others count for nothing


@pytest.mark.parametrize("code", ["present", "accepted"])
def test_what_is_asked_of_runs_of_another_notebook_is_measured_side_by_side(code, machine, file, monkeypatch):
    runs.run_all(SEEDS, jobs=1, record=file.with_name("13_pfml_ablation_proxies.jsonl"))
    if code == "accepted":
        true = keys.source_hash
        monkeypatch.setattr(keys, "source_hash", lambda loss, scheme: "f" * 8 + true(loss, scheme)[8:])
        assert cli.main(["records", "check", "--jobs", "1"]) == 0
    machine()
    trained = []
    train = loop.train
    monkeypatch.setattr(loop, "train", lambda spec, **how: trained.append(spec.seed) or train(spec, **how))
    before = EXECUTION.run(SEEDS, jobs=1)
    assert trained == [0, 1, 2] and {("run" in line) for line in records.lines(file)} == {False}
    assert not any(run.from_cache or run.stale for run in before)
    machine()
    monkeypatch.setattr(loop, "train", lambda *a, **k: pytest.fail("trained again"))
    finished = EXECUTION.run(SEEDS)
    assert [run.rows for run in finished] == [run.rows for run in before]
    assert "intra_class_distance" in set(Repulsion.table(finished, PARAMS)["metric"])


def test_what_was_not_measured_is_known_without_an_image(finished, machine, file, monkeypatch):
    machine()
    (run, *_) = runs.run_all(SEEDS, record=file)
    monkeypatch.setattr(manifests, "load", lambda *a, **k: pytest.fail("an image was asked for"))
    assert runs._asks_for_weights(EXECUTION.measure, run)


def test_the_code_of_a_measurement_does_not_depend_on_what_is_imported_by_then():
    program = "from dmlrepro.evidence import results; from dmlrepro.training import records; "
    program += "print(records.code_of(results._counts))"
    alone = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert alone.stdout.strip() == records.code_of(results._counts)


def test_what_a_change_makes_of_the_committed_record_is_part_of_it(monkeypatch):
    monkeypatch.delenv("DMLREPRO_RECORD")
    stale = [row for row in [*checking.states(), *measurements.states()] if row["state"] == records.STALE]
    assert stale == [], "python -m dmlrepro records check"


# --- older code ---


@pytest.fixture
def measured(finished, machine, monkeypatch):
    """What was measured on runs by code that is no longer the present one, on a machine that has none of them."""
    for run in finished:
        studies.measured(run, spread, "power=2", power=2.0)
    true = records.code_of.__wrapped__
    monkeypatch.setattr(records, "code_of", lambda function: "f" * 8 + true(function)[8:])
    machine()


def test_a_check_keeps_what_older_code_measured_alike(measured, machine, file, capsys, monkeypatch):
    before = [line["value"] for line in records.lines(file) if "derived" in line]
    (run, *_) = runs.run_all(SEEDS, record=file)
    assert runs._asks_for_weights(lambda run: studies.measured(run, spread, power=2.0), run)
    assert [(row["kind"][-6:], row["state"], row["runs"]) for row in measurements.states()] == [("spread", "stale", 3)]
    assert cli.main(["records", "check", "--jobs", "1"]) == 0
    assert "spread: 3 of 3 stale measurements made again, as they were\naccepted" in capsys.readouterr().out
    machine()
    no_training(monkeypatch)
    again = [studies.measured(run, spread, power=2.0).rows[0]["value"] for run in runs.run_all(SEEDS, record=file)]
    assert again == [value["norm"] for value in before]
    assert measurements.check() == measurements.states() == []


def test_what_the_present_code_measured_elsewhere_stays_alone(measured, file):
    (line, *_) = (line for line in records.lines(file) if "derived" in line)
    asked = [*line["asked"][:2], records.code_of(spread)]
    own = {"derived": records.kept_under(asked, line["of"]), "asked": asked, "value": {"norm": 0.5}}
    records.append(file.with_name("elsewhere.jsonl"), line | own)
    (row,) = measurements.check(jobs=1)
    assert (row["runs"], row["differ"]) == (2, "")
    assert [line["of"] for line in records.lines(file) if "derived" in line] == [
        [[run.name, run.source]] for run in runs.run_all(SEEDS, record=file)[1:]
    ]
    assert studies.measured(runs.run_all(SEEDS, record=file)[0], spread, power=2.0).rows[0]["value"] == 0.5


def test_a_check_keeps_nothing_that_is_measured_otherwise(measured, file, capsys, monkeypatch):
    monkeypatch.setitem(globals(), "POWER", 3)
    before = file.read_bytes()
    assert cli.main(["records", "check", "--jobs", "1"]) == 0
    assert "test_records.spread of PFML glyphs seed 0 has another value" in (printed := capsys.readouterr().out)
    assert "what was measured otherwise is measured again by the notebooks" in printed
    assert file.read_bytes() == before


def test_what_takes_other_options_now_is_asked_by_nothing(measured, file, monkeypatch):
    monkeypatch.setitem(globals(), "spread", lambda run, exponent=1.0: {})
    assert measurements.check() == measurements.states() == []
    assert any("derived" in line for line in records.lines(file))


def test_only_a_machine_that_is_alike_tells_what_is_measured_alike(measured, file, monkeypatch):
    monkeypatch.setattr(keys, "rounding", lambda: "another")
    no_training(monkeypatch)
    (row,) = measurements.check()
    assert row["trained"] == 0 and row["differ"].startswith("none of their runs was trained on a machine like this one")


def test_runs_of_older_code_are_shown_marked_and_not_trained(older, file, monkeypatch):
    no_training(monkeypatch)
    again = runs.run_all(SEEDS, record=file)
    assert [run.rows for run in again] == [run.rows for run in older] and all(run.stale for run in again)
    with pytest.raises(ValueError, match=r"seed 0: the code that trained it is not the present one.*records renew"):
        _ = again[0].embeddings
    made = saving.provenance(PARAMS, again)
    assert stored.of_older_code(made) and made["trained_by"][0][-1] == older[0].source
    assert stored.findings(results.tidy(again, PARAMS), {}, PARAMS.notebook, [], older=True) == [stored.OLDER]
    assert {row["state"] for row in checking.states()} == {"stale"}


PARAMS = RepulsionParams.from_values({"profile": "small", "seeds": 3})
EXECUTION = Execution(Repulsion, PARAMS)


def test_a_check_accepts_code_that_does_the_same(older, machine, file, monkeypatch):
    (row,) = checking.check(jobs=1)
    assert (row["runs"], row["trained"], row["differ"]) == (3, 3, "")
    again = runs.run_all(SEEDS, record=file)
    assert not any(run.stale for run in again) and not stored.of_older_code(saving.provenance(PARAMS, again))
    assert {row["state"] for row in checking.states()} == {"accepted"}
    monkeypatch.setattr(keys, "source_hash", lambda *what: "e" * 64)  # and the next edit is another question
    assert all(run.stale for run in runs.run_all(SEEDS, record=file))


@pytest.mark.parametrize("known", [True, False])
def test_older_codes_that_train_alike_are_one_sample(known, file, machine, monkeypatch):
    first, second, third = ("a" * 64, "b" * 64, "c" * 64)
    for code, specs in ((first, SEEDS[:1]), (second, SEEDS[1:])):
        monkeypatch.setattr(keys, "source_hash", lambda *what, code=code: code)
        runs.run_all(specs, record=file, jobs=1)
    kind = records.kind_of(records.lines(file)[0])
    if known:
        records.accept({third: {first: [kind], second: [kind]}})
    monkeypatch.setattr(keys, "source_hash", lambda *what: "d" * 64)
    machine()
    assert sorted(row["runs"] for row in checking.check(jobs=1)) == ([3] if known else [1, 2])
    assert {row["state"] for row in checking.states()} == {"accepted"}


def test_codes_are_alike_through_others_and_for_a_kind_alone():
    accepted = {"d": {"c": ["tails"], "x": ["heads"]}, "c": {"b": ["tails"]}, "b": {"a": ["tails", "heads"]}}
    assert checking.alike("a", "tails", accepted) == {"a", "b", "c", "d"}
    assert checking.alike("a", "heads", accepted) == {"a", "b"}
    assert checking.alike("x", "tails", accepted) == {"x"}


@pytest.mark.parametrize("rounding", ["alike", "otherwise"])
def test_a_check_refuses_code_that_does_something_else(older, file, monkeypatch, rounding):
    true = loop.train
    monkeypatch.setattr(loop, "train", lambda spec, **how: true(spec.replace(lr=30 * spec.lr), **how))
    if rounding == "otherwise":
        monkeypatch.setattr(keys, "rounding", lambda: "0" * 16)
    (row,) = checking.check(jobs=1)
    assert row["differ"].startswith("PFML glyphs seed ") and records.accepted() == {}
    assert all(run.stale for run in runs.run_all(SEEDS, record=file))


def test_a_selection_that_one_seed_has_is_as_uncertain_as_the_last_step():
    """The best of its evaluations, of which the other seeds have none, differs on another machine as the last does."""

    def line(seed: int, **selections: float) -> dict:
        rows = [{"selection": name, "metric": "R@1", "value": value} for name, value in selections.items()]
        return {
            "described": f"seed {seed}",
            "spec": {"seed": seed, "lr": 0.1},
            "rows": rows,
            "made": dict.fromkeys(checking.ALIKE, 1),
        }

    lines = [line(0, last=0.70, test_best=0.72), line(1, last=0.71), line(2, last=0.69)]
    deviations = checking.deviations_over_seeds(lines)

    def differs(best: float) -> str:
        made = dict.fromkeys(checking.ALIKE, 2)
        rows = [row | {"value": best if row["selection"] == "test_best" else row["value"]} for row in lines[0]["rows"]]
        return checking.difference([(lines[0], SimpleNamespace(rows=rows, made=made))], deviations)

    assert not differs(0.725) and "test_best R@1 was 0.72" in differs(0.76)


def test_a_check_takes_what_another_processor_rounds_otherwise(older, file, monkeypatch):
    monkeypatch.setattr(keys, "rounding", lambda: "0" * 16)
    true = loop.train

    def nearly(spec, **how):
        outcome = true(spec, **how)
        for number, row in enumerate(outcome.rows):
            row["value"] *= 1 + 1e-9 * (-1) ** number
        return outcome

    monkeypatch.setattr(loop, "train", nearly)
    (row,) = checking.check(jobs=1)
    assert row["differ"] == "" and records.accepted()


def test_what_is_stale_is_renewed_in_its_place(older, file):
    studies.measured(runs.run_all(SEEDS[:1], record=file, renew=True)[0], spread)
    assert checking.renew(["10_pfml_retrieval"]) == 0
    assert checking.renew(jobs=1) == 2
    names = sorted(line.get("run", "measured") for line in records.lines(file))
    assert names == sorted([*(run.name for run in older), "measured"])  # the run that it was measured on is new as well
    assert {row["state"] for row in checking.states()} == {"current"}


def test_a_part_of_a_study_is_its_whole_seeds(finished, machine, file, monkeypatch):
    machine()
    records.rewrite(file, lambda line: None if line["run"] == finished[1].name else line)
    monkeypatch.setenv("DMLREPRO_TRAIN", "0")
    no_training(monkeypatch)
    on_record = EXECUTION.run(SEEDS)
    assert [run.spec.seed for run in on_record] == [0, 2]
    assert EXECUTION._seeds_missing(results.tidy(on_record, PARAMS)) == "2 of 3 seeds are on record so far."
    with pytest.raises(FileNotFoundError, match=r"1 of 1 runs are not in"):
        EXECUTION.run(SEEDS[1:2])


def test_the_commands_say_what_is_stale_and_what_was_checked(older, capsys, monkeypatch):
    assert cli.main(["records", "status"]) == 0
    assert "small/16_pfml_ablation_repulsion_radius" in (printed := capsys.readouterr().out) and "stale" in printed
    assert cli.main(["records", "check", "--jobs", "1"]) == 0
    assert "3 of 3 stale runs trained again, as they were\naccepted" in capsys.readouterr().out
    monkeypatch.setattr(searches, "outdated", lambda: {"small/10.csv": ["PFML--x.json"]})
    assert cli.main(["records", "check"]) == 1
    assert "results/small/10.csv rests on another search than PFML--x.json is now" in capsys.readouterr().out


def test_the_spec_of_a_line_is_that_of_the_run(machine, file):
    untrained = TINY.replace(loss=None, steps=None, embedding_size=None, method="untrained")
    runs.run_all([untrained], record=file)
    assert checking.spec_of(records.lines(file)[-1]) == untrained
    for profile in ("small", "paper"):
        for notebook in catalogue.studies().values():
            for spec in notebook.specs_untrained(notebook.params.from_values({"profile": profile})):
                kept = {name: value for name, value in spec.as_dict().items() if not keys._is_nothing(value)}
                labels = {name: getattr(spec, name) for name in LABELS}
                read = checking.spec_of(
                    json.loads(json.dumps({"spec": kept, "labels": labels, "made": {"threads": spec.threads or 0}}))
                )
                assert json.dumps(read.as_dict()) == json.dumps(spec.as_dict())


def test_a_check_says_which_run_diverges_now_and_accepts_the_other_kinds(finished, file, machine, monkeypatch):
    untrained = TINY.replace(loss=None, steps=None, embedding_size=None, method="untrained")
    runs.run_all([untrained], record=file)
    machine()
    true, train = keys.source_hash, loop.train
    monkeypatch.setattr(keys, "source_hash", lambda loss, scheme: "e" * 8 + true(loss, scheme)[8:])
    monkeypatch.setattr(loop, "train", lambda spec, **how: train(spec.replace(lr=1e30) if spec.loss else spec, **how))
    differences = {row["kind"]: row["differ"] for row in checking.check(jobs=1)}
    assert "3 of 3 runs failed" in differences["baselines, supervised, whole networks"]
    assert differences["untrained, supervised, whole networks"] == ""
    assert [run.stale for run in runs.run_all([untrained, *SEEDS], record=file)] == [False, True, True, True]


def test_renewed_runs_are_measured_again(older, file, machine, monkeypatch):
    assert checking.renew(jobs=1, measure=lambda file, run: studies.measured(run, spread)) == 3
    machine()
    no_training(monkeypatch)
    assert studies.measured(runs.run_all(SEEDS, record=file)[0], spread).rows


def test_a_table_says_what_trained_the_runs_of_its_last_execution(older, file, monkeypatch):
    stale = runs.run_all(SEEDS, record=file)
    path = saving.save(results.tidy(stale, PARAMS), PARAMS, runs=stale)
    assert stored.of_older_code(provenance.record(path))
    checking.renew(jobs=1)
    new = runs.run_all(SEEDS, record=file)
    saving.save(results.tidy(new, PARAMS), PARAMS, runs=new)
    assert not stored.of_older_code(provenance.record(path))


def test_a_line_that_lost_its_end_is_still_one(finished, file):
    file.write_bytes(file.read_bytes()[:-1])
    assert len(records.lines(file)) == 3
    records.append(file, {"run": "x"})
    assert len(records.lines(file)) == 4


def test_a_file_that_grows_is_read_from_there_on(finished, file, monkeypatch):
    records.lines(file)
    records.append(file, {"run": "x"})
    looked = []
    true = records._content
    monkeypatch.setattr(records, "_content", lambda line: looked.append(line) or true(line))
    assert len(records.lines(file)) == 4
    assert len([line for line in looked if line]) == 1
