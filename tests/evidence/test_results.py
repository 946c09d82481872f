"""Tables are validated whole and written whole, and counts by class agree with them."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
import torch

from dmlrepro import retrieval
from dmlrepro.evidence import provenance, results, stored, tables
from dmlrepro.papers.params import Params
from dmlrepro.training import batches, inference, keys
from dmlrepro.training.spec import RunSpec

ROOT = Path(__file__).parents[2]


class Example(Params):
    notebook = "99_example"
    paper = "pfml"


ROW = {"paper": "pfml", "experiment": "99_example", "profile": "quick", "dataset": "glyphs", "method": "PFML"}


def table(*values):
    return results.frame([ROW | {"seed": i, "metric": "R@1", "value": value} for i, value in enumerate(values)])


def test_what_is_written_is_read_back():
    path = results.save(table(50.0, 60.0), Example.from_values({}))
    pd.testing.assert_frame_equal(results.read(path), table(50.0, 60.0), check_dtype=False)
    assert path.name == "99_example.csv"
    assert path.with_suffix(".json").exists()


def test_all_tables_in_one_frame_have_different_identities(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_RESULTS", str(tmp_path))
    for changed in ({}, {"steps": 7}, {"steps": 7, "lr": 0.5}):
        results.save(table(50.0, 60.0), Example.from_values(changed))
    everything = results.load_all(tmp_path)
    assert list(everything.columns) == [*tables.IDENTITY, "changes", "value"]
    assert sorted(set(everything["changes"])) == ["", "lr=0.5,steps=7", "steps=7"]
    assert len(everything) == 6 and not everything.duplicated([*tables.IDENTITY, "changes"]).any()
    with pytest.raises(FileNotFoundError, match=r"no tables in .*run a notebook first"):
        results.load_all(tmp_path / "nothing")


def test_the_committed_tables_concatenate():
    everything = results.load_all()
    assert len(everything) > 2000 and everything.duplicated(tables.IDENTITY).any()  # which `changes` tells apart
    assert not everything.duplicated([*tables.IDENTITY, "changes"]).any()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"value": float("nan")}, "finite"),
        ({"value": 101.0}, r"\[0, 100\]"),
        ({"selection": "best"}, "selection"),
        ({"method": ""}, "method is empty"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_written(change, message):
    params = Example.from_values({})
    good = results.save(table(50.0), params).read_bytes()
    bad = pd.concat([table(50.0), table(50.0).assign(seed=1, **change)], ignore_index=True)
    with pytest.raises(ValueError, match=message):
        results.save(bad, params)
    assert (results.output_folder("quick") / "99_example.csv").read_bytes() == good


def test_the_same_measurement_twice_is_an_error():
    with pytest.raises(ValueError, match="twice"):
        results.frame([ROW | {"metric": "R@1", "value": 1.0}] * 2)


def test_unchanged_numbers_keep_their_provenance(monkeypatch):
    params = Example.from_values({})
    path = results.save(table(50.0), params)
    before = path.with_suffix(".json").read_text()
    monkeypatch.setattr(results, "provenance", lambda *_: {"git_commit": "another"})
    results.save(table(50.0), params)
    assert path.with_suffix(".json").read_text() == before
    results.save(table(51.0), params)
    assert "another" in path.with_suffix(".json").read_text()


def test_other_parameters_of_the_same_numbers_are_recorded():
    """As after a change of what a profile decides."""
    for steps in (2, 3):
        given = {"notebook": "99_example", "stem": "99_example", "profile": "quick"}
        path = results.save(table(50.0), SimpleNamespace(**given, as_dict=lambda steps=steps: {"steps": steps}))
        assert provenance.record(path)["parameters"] == {"steps": steps}


def test_the_order_of_rows_does_not_change_the_bytes():
    rows = table(1.0, 2.0, 3.0)
    assert results.to_csv(rows) == results.to_csv(rows.iloc[::-1])


def test_published_numbers_are_found_and_a_miss_lists_what_exists():
    rows = results.published("pfml", "Table 1", dataset="CUB-200-2011", backbone="ResNet50", metric="R@1")
    assert rows.set_index("method")["value"]["Potential Field (Ours)"] == 73.4
    with pytest.raises(ValueError, match=r"no published row with table in \['Table 11'\]"):
        results.published("pfml", "Table 11")


def test_a_picture_is_saved_and_published_beside_its_table_but_not_at_quick(tmp_path, monkeypatch):
    figure = matplotlib.figure.Figure()
    monkeypatch.setenv("DMLREPRO_RESULTS", str(tmp_path / "build"))
    made = {profile: Example.from_values({"profile": profile}) for profile in ("quick", "small")}
    with pytest.raises(ValueError, match=r"small/99_example\.json is missing"):
        results.save_picture(figure, made["small"])
    for params in made.values():
        results.save(table(50.0, 60.0), params)
        results.save_picture(figure, params)
    assert [path.parent.name for path in tmp_path.rglob("*.png")] == ["small"]
    assert results.publish(tmp_path / "build" / "small", tmp_path / "results") == (1, 1)
    picture = tmp_path / "results" / "99_example.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and not provenance.damage(picture.with_suffix(".csv"))
    results.save(table(51.0), made["small"])  # a picture of other numbers goes
    assert results.publish(tmp_path / "build" / "small", tmp_path / "results") == (1, 1)
    assert not picture.exists() and results.read(picture.with_suffix(".csv"))["value"].item() == 51


def test_golden_comparison_sees_a_moved_and_a_missing_number():
    golden = results.golden_means(table(50.0, 60.0)).assign(tolerance=0.5)
    assert results.compare_golden(table(50.4, 60.4), golden).empty
    assert list(results.compare_golden(table(51.2, 60.0), golden)["new"]) == [pytest.approx(55.6)]
    assert len(results.compare_golden(table(50.0, 60.0).assign(method="CPML"), golden)) == 1


def test_a_pivot_shows_students_interval_of_what_the_validation_classes_chose():
    rows = [
        ROW | {"protocol": "MLRC separated", "metric": "MAP@R", "seed": seed, "selection": selection, "value": value}
        for seed, value in enumerate((41.0, 42.0, 44.0, 43.0, 40.0))
        for selection, value in (("val_best", value), ("last", 10.0))
    ]
    rows += [ROW | {"protocol": "conventional", "metric": "MAP@R", "value": 7.0}]
    shown = results.pivot(results.frame(rows), ["MAP@R", "P@1"]).reset_index()
    # t(0.975, 4) = 2.776445 times the standard deviation sqrt(5 / 2) over sqrt(5)
    assert dict(zip(shown["protocol"], shown["MAP@R"])) == {"MLRC separated": "42.0 ± 2.0", "conventional": "7.0"}
    few = results.pivot(results.frame(row for row in rows if row.get("seed", 0) < 4), ["MAP@R"]).reset_index()
    assert dict(zip(few["protocol"], few["MAP@R"])) == {"MLRC separated": "42.5", "conventional": "7.0"}
    assert (shown["P@1"] == "").all()


def test_a_readable_table_is_rounded_and_empty_where_nothing_is_known():
    table = pd.DataFrame({"ours": [1.26, np.nan], "count": [3, 4]})
    shown = results.readable(table, 1)
    assert shown.to_numpy().tolist() == [[1.3, 3], ["", 4]]
    assert "NaN" not in shown.to_html()


def test_what_validation_chose_stands_beside_the_published_numbers():
    selections = {"last": 50.0, "val_best": 60.0, "test_best": 70.0}
    rows = [{"selection": s, "metric": "R@1", "value": v} for s, v in selections.items()]
    rows += [{"method": "untrained", "metric": name, "value": 20.0} for name in ("R@1", "R@10", "R@100")]
    found = results.frame([ROW | row for row in rows])
    assert results.recalls(found) == ["R@1", "R@10", "R@100"]
    assert list(tables.chosen(found)["selection"]) == ["val_best", "last", "last", "last"]
    measured = results.frame([ROW | {"selection": "last", "metric": "spread", "value": 0.5}])
    assert list(tables.chosen(pd.concat([found, measured]))["metric"])[-1] == "spread"  # it has no other selection
    beside = results.beside_published(found, results.published("pfml", "Table 1", metric="R@1"), ["R@1", "R@2"])
    ours = beside["ours glyphs R@1"]
    assert dict(ours[ours != ""]) == {"PFML": 60.0, "untrained": 20.0}
    assert not [name for name in beside if "R@2" in name]  # SOP and In-Shop have other ranks
    with pytest.raises(ValueError, match=r"the table has none of R@2; it has \['R@1', 'R@10', 'R@100'\]"):
        results.beside_published(found, results.published("pfml", "Table 1", metric="R@1"), ["R@2"])


# --- publishing


def build_folder(path, rounding="here", **numbers):
    """Tables named as given, each with its provenance and costs."""
    path.mkdir(parents=True)
    for name, value in numbers.items():
        saved(path / f"{name}.csv", table(value), rounding=rounding, parameters={"steps": 10})
    return path


def saved(path, rows, costs="seconds\n1\n", **made):
    path.write_text(results.to_csv(rows))
    path.with_suffix(".cost.csv").write_text(costs)
    provenance.seal(path, {"made": rows["value"].iloc[0]} | made)


def test_what_is_new_or_changed_is_published_with_its_provenance(tmp_path):
    target = tmp_path / "results"
    assert results.publish(build_folder(tmp_path / "one", a=50.0, b=60.0), target) == (2, 2)
    assert results.read(target / "a.csv")["value"].item() == 50
    (tmp_path / "two").mkdir()
    build = build_folder(tmp_path / "two" / "quick", a=50.0, b=61.0)
    saved(build / "a.csv", table(50.0), costs="seconds\n2\n", made="again")
    assert results.publish(build, target) == (2, 1)
    made = {name: json.loads((target / f"{name}.json").read_text())["made"] for name in "ab"}
    assert made == {"a": 50, "b": 61}
    assert (target / "a.cost.csv").read_text() == "seconds\n1\n"
    assert results.read(target / "b.csv")["value"].item() == 61


# the notebook whose committed tables have every kind of file
COMMITTED = [path.relative_to(ROOT / "results") for path in sorted((ROOT / "results").glob("*/40_ccp_mnist[.-]*"))]


@pytest.mark.parametrize("file", COMMITTED, ids=str)
def test_every_file_of_a_published_notebook_is_refused_by_name_and_remade(file, tmp_path):
    """Whatever becomes of it: nothing is read of that table until the next build has published it again."""
    there, build = tmp_path / "results", tmp_path / "build"
    shutil.copytree(ROOT / "results" / file.parent, there / file.parent)
    stem = file.name.removesuffix(file.suffix).removesuffix(".cost")
    build.mkdir()
    for path in (ROOT / "results" / file.parent).glob(f"{stem}.*"):
        shutil.copy(path, build)
    whole = (there / file).read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for content in (None, b"", whole[:middle], whole[:-1], flipped, whole + b"\n"):
        (there / file).unlink() if content is None else (there / file).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{file.parent}/{re.escape(file.name)} is .*`make results`.* from git"):
            stored.stored("40_ccp_mnist", there)
        stored.stored("40_ccp_mnist", there, but=file.parent / f"{stem}.csv")  # its own notebook can make it again
        assert results.publish(build, there / file.parent) == (1, 1)
        assert (there / file).read_bytes() == whole
    assert results.publish(build, there / file.parent) == (1, 0)


def test_the_files_of_the_test_above_are_of_every_kind():
    assert {"".join(path.suffixes[-2:]) for path in COMMITTED} >= {".csv", ".cost.csv", ".json", ".png"}


def test_a_file_that_was_not_saved_with_its_table_is_refused():
    path = results.save(table(50.0), Example.from_values({}))
    path.with_suffix(".cost.csv").write_text("seconds\n1\n")
    with pytest.raises(ValueError, match=r"99_example\.cost\.csv is not what was saved"):
        results.read(path)


def test_an_edit_of_what_made_a_table_is_found():
    path = results.save(table(50.0), Example.from_values({}))
    made = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps(made | {"rounding": "another"}, indent=1) + "\n")
    with pytest.raises(ValueError, match=r"99_example\.json is not what was saved"):
        results.read(path)


def test_an_edited_table_is_replaced_even_where_another_processor_could_have_made_it(tmp_path, golden):
    target = tmp_path / "results"
    results.publish(build_folder(tmp_path / "there", rounding="there", a=50.0), target)
    build = build_folder(tmp_path / "here", a=51.0)
    (target / "a.csv").write_text(results.to_csv(table(50.5)))
    assert "a.csv is not what was saved" in results.outdated(build, target)["a"]
    assert results.publish(build, target) == (1, 1)
    assert results.read(target / "a.csv")["value"].item() == 51
    (build / "a.csv").write_text(results.to_csv(table(52.0)))
    with pytest.raises(ValueError, match=r"here/a\.csv is not what was saved"):
        results.publish(build, target)
    assert results.read(target / "a.csv")["value"].item() == 51


def test_what_was_edited_is_saved_anew():
    path = results.save(table(50.0), Example.from_values({}))
    path.write_text(results.to_csv(table(60.0)))
    with pytest.raises(ValueError, match="not what was saved"):
        results.read(path)
    assert results.read(results.save(table(50.0), Example.from_values({})))["value"].item() == 50


def test_no_committed_table_was_edited():
    tables = [path for folder in ("quick", "small") for path in results.table_paths(ROOT / "results" / folder)]
    assert len(tables) > 40
    assert [provenance.damage(path) for path in tables if provenance.damage(path)] == []


def run_on(device: str, key: str, **made) -> SimpleNamespace:
    commit = {"git_commit": "c0", "versions": {"torch": "2"}, "rounding": f"as {device}"}
    spec = SimpleNamespace(method="PFML", setting="", seed=0)
    made = {"device": device, **commit, **made}
    return SimpleNamespace(key=key, made=made, spec=spec, cost={"seconds": 1.0}, record=None)


def test_provenance_lists_the_runs_that_were_used_and_not_this_machine():
    params = Example.from_values({})
    gpu = [run_on("NVIDIA X", "a"), run_on("NVIDIA X", "b"), run_on("NVIDIA X", "b")]  # one twice in a table
    made = json.loads(results.save(table(50.0), params, runs=gpu).with_suffix(".json").read_text())
    assert (made["device"], made["rounding"]) == ("NVIDIA X", "as NVIDIA X")
    assert [(group["count"], group["git_commit"], group["device"]) for group in made["runs"]] == [(2, "c0", "NVIDIA X")]
    mixed = results.provenance(params, [*gpu, run_on("CPU x86_64", "c", git_commit="c1")])
    assert mixed["device"] == "CPU x86_64 + NVIDIA X"
    assert {(group["git_commit"], group["count"]) for group in mixed["runs"]} == {("c0", 2), ("c1", 1)}
    assert results.provenance(params)["device"] == keys.device_name()


def test_costs_are_those_of_the_runs_unless_given():
    params = Example.from_values({})
    path = results.save(table(50.0), params, runs=[run_on("X", "a")]).with_suffix(".cost.csv")
    assert path.read_text().splitlines()[1] == "PFML,,0,1"
    results.save(table(50.0), params, runs=[run_on("X", "a")], cost=pd.DataFrame({"seconds": [2]}))
    assert path.read_text().splitlines() == ["seconds", "2"]


@pytest.fixture
def golden(tmp_path, monkeypatch):
    """Golden values of tables a and b, both 50 within 2; this processor rounds as "here" says."""
    monkeypatch.setattr(results, "golden_folder", lambda: tmp_path)
    monkeypatch.setattr(keys, "rounding", lambda: "here")
    for name in "ab":
        results.golden_means(table(50.0)).assign(tolerance=2.0).to_csv(tmp_path / f"{name}.csv", index=False)


def test_what_another_processor_rounds_otherwise_is_left_alone_and_counted(tmp_path, golden):
    target = tmp_path / "results" / "quick"
    results.publish(build_folder(tmp_path / "there", rounding="there", a=50.0, b=50.0), target)
    build = build_folder(tmp_path / "here", a=51.5, b=50.0)
    assert results.publish(build, target) == (2, 0)
    assert results.read(target / "a.csv")["value"].item() == 50
    assert results.difference(build, target) == "1 of 2 numbers differ from the committed ones, the largest by 1.50"
    assert results.outdated(build, target) == {}
    assert results.publish(build, target, everything=True) == (2, 2)
    assert results.difference(build, target) == ""
    assert results.publish(build, target, everything=True) == (2, 0)


def test_everything_is_of_one_execution_with_its_costs(tmp_path):
    target = tmp_path / "results"
    results.publish(build_folder(tmp_path / "one", a=50.0), target)
    build = tmp_path / "two"
    build.mkdir()
    saved(build / "a.csv", table(50.0), costs="seconds\n2\n")
    assert results.publish(build, target) == (1, 0)
    assert results.publish(build, target, everything=True) == (1, 1)
    assert (target / "a.cost.csv").read_text() == "seconds\n2\n" and not provenance.damage(target / "a.csv")


def early_stopped(step, value=50.0):
    """A run that stopped at a step, and was best on validation classes before."""
    rows = [
        ROW | {"metric": "R@1", "value": value, "selection": selection, "step": step - before}
        for selection, before in (("last", 0), ("val_best", 20), ("test_best", 30))
    ]
    return results.frame(rows)


def test_another_step_of_an_early_stop_is_another_outcome_and_not_another_row(tmp_path, golden):
    target, build = tmp_path / "results", tmp_path / "build"
    for folder, step, rounding in ((target, 100, "there"), (build, 140, "here")):
        folder.mkdir()
        saved(folder / "a.csv", early_stopped(step, 50.0 + step / 1000), rounding=rounding, parameters={})
    assert results.publish(build, target) == (1, 0)
    assert results.outdated(build, target) == {}
    assert results.difference(build, target) == "3 of 3 numbers differ from the committed ones, the largest by 0.04"
    both = pd.concat([early_stopped(100), early_stopped(140)])
    with pytest.raises(ValueError, match="the same measurement twice"):
        results.validate(both)
    results.validate(both.assign(selection="every"))  # the evaluations during a run


@pytest.mark.parametrize(
    "made_on, value, why",
    [
        ("there", 53.0, "1 golden values are beyond their tolerance"),
        ("here", 50.001, "1 of 1 numbers differ, on a processor that rounds alike"),
        ("here", 50.000001, ""),  # the last digit that is written
        ("there", 50.001, ""),
    ],
)
def test_a_committed_table_that_the_present_code_does_not_make_is_named(made_on, value, why, tmp_path, golden):
    target = tmp_path / "results"
    results.publish(build_folder(tmp_path / "there", rounding=made_on, a=50.0), target)
    build = build_folder(tmp_path / "here", a=value)
    assert results.outdated(build, target).get("a", "") == why
    beyond = "beyond" in why
    assert results.publish(build, target) == (1, int(beyond))  # `git status` stays clean where no tolerance is exceeded
    assert results.outdated(build, target).get("a", "") == why


def test_other_rows_and_other_parameters_are_named_wherever_they_come_from(tmp_path, golden):
    target = tmp_path / "results"
    results.publish(build_folder(tmp_path / "there", rounding="there", a=50.0), target)
    build = build_folder(tmp_path / "here", a=50.0)
    saved(build / "a.csv", table(50.1), rounding="here", parameters={"steps": 12, "added": 1})
    assert results.outdated(build, target) == {"a": "it was made with other parameters (steps)"}
    saved(build / "a.csv", table(50.0), rounding="here", parameters={"steps": 12})  # which it does not depend on
    assert results.outdated(build, target) == {}
    more = pd.concat([table(50.0), table(50.0).assign(metric="R@2")])
    saved(build / "a.csv", more, rounding="here", parameters={"steps": 10})
    assert results.outdated(build, target) == {"a": "1 rows are in one of the two only"}
    assert results.publish(build, target) == (1, 1)
    assert results.outdated(build, target) == {}


def test_a_table_of_another_profile_has_no_golden_values(tmp_path, golden):
    target, build = tmp_path / "results", tmp_path / "build"
    for folder, value in ((target, 50.0), (build, 50.5)):
        folder.mkdir()
        saved(folder / "a.csv", table(value).assign(profile="small"), rounding=str(folder), parameters={})
    assert results.publish(build, target) == (1, 1)


def test_seeds_that_agree_to_the_last_digit_are_one_seed_used_for_all(tmp_path, golden, capsys):
    rows = pd.concat([table(50.0).assign(metric="MAP@R", seed=seed) for seed in (0, 1)], ignore_index=True)
    assert results.seeds_that_agree(rows) == rows["method"].iloc[0]
    rows.loc[1, "value"] += 1e-6
    assert results.seeds_that_agree(rows) == ""
    pretrained = rows.assign(method="untrained", value=1.0)  # its features know no seed
    assert results.seeds_that_agree(pretrained) == ""


def test_one_bad_table_publishes_nothing(tmp_path):
    build = build_folder(tmp_path / "build", a=50.0, b=60.0)
    text = (build / "b.csv").read_text()
    (build / "b.csv").write_text(text.replace("60.000000", "160.000000"))
    provenance.seal(build / "b.csv", {})
    with pytest.raises(ValueError, match=r"b\.csv: percentages must lie in \[0, 100\]"):
        results.publish(build, tmp_path / "results")
    assert not (tmp_path / "results").exists()
    with pytest.raises(FileNotFoundError, match="no tables in"):
        results.publish(tmp_path / "results", tmp_path / "results")


# --- counts by class


LABELS = np.array([0] * 6 + [1] * 6 + [2] * 5 + [3])  # the class of one image has no query
SPEC = RunSpec("glyphs", steps=1, method="PFML", embedding_size=4)


@pytest.fixture(params=["each other", "apart"])
def dataset(request, monkeypatch, tmp_path):
    """Test images that search each other, or queries that search a gallery apart; and an empty cache."""
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path))
    index = np.arange(len(LABELS))
    query, gallery = (index >= 0, index >= 0) if request.param == "each other" else (index % 2 == 0, index % 2 == 1)
    manifest = SimpleNamespace(labels=LABELS, is_query=query, is_gallery=gallery, indices=lambda split: index)
    monkeypatch.setattr(batches, "load_dataset", lambda spec: manifest)
    return manifest


def finished(dataset, seed, **changes):
    """A run with random embeddings, scored as training scores them."""
    spec = SPEC.replace(seed=seed, **changes)
    embeddings = torch.randn(len(LABELS), 4, generator=torch.Generator().manual_seed(10 * seed + (spec.fold or 0)))
    scores = inference.score(embeddings, torch.from_numpy(LABELS), dataset.is_query, dataset.is_gallery, (1,))
    selections = ("last", "val_best") if spec.restore_best else ("last",)
    rows = [{"selection": s, "step": 1, "metric": name, "value": v} for s in selections for name, v in scores.items()]
    key = f"run-{seed}-{changes}"
    return SimpleNamespace(spec=spec, dataset="glyphs", rows=rows, embeddings=embeddings, key=key, record=None)


def test_counts_by_class_add_up_to_the_recall_of_the_table(dataset):
    folds = {"protocol": "mlrc", "folds": 2, "restore_best": True, "eval_every": 1}
    runs = [finished(dataset, seed) for seed in range(2)] + [finished(dataset, 0, setting="alpha=1")]
    runs += [finished(dataset, seed, fold=fold, **folds) for seed in range(2) for fold in range(2)]
    runs += [finished(dataset, 0, loss=None, steps=None, protocol="mlrc", method="untrained")]
    params = Example.from_values({})
    hits = results.hits(runs, params)
    assert list(hits) == tables.HITS and 3 not in set(hits["class_id"])
    cell = [*tables.CONTEXT, "method", "setting", "seed"]
    totals = hits.groupby(cell)[["hits", "queries"]].sum()
    rows = tables.chosen(results.tidy(runs, params))
    expected = rows[rows["metric"] == "R@1"].set_index(cell)["value"]
    assert len(totals) == len(expected) == 3 + 2 * 2 + 2
    pd.testing.assert_series_equal(
        100 * totals["hits"] / totals["queries"], expected, check_like=True, check_names=False
    )


def test_counts_of_a_class_are_those_of_its_queries(dataset):
    run = finished(dataset, 0)
    hits = results.hits([run], Example.from_values({})).set_index("class_id")
    query, gallery = torch.from_numpy(dataset.is_query), torch.from_numpy(dataset.is_gallery)
    labels = torch.from_numpy(LABELS)
    others = {} if query.all() else {"gallery": run.embeddings[gallery], "gallery_labels": labels[gallery]}
    each = retrieval.retrieval_per_query(run.embeddings[query], labels[query], (1,), **others)
    for class_id in range(3):
        mine = labels[query] == class_id
        assert hits.loc[class_id, "hits"] == each["R@1"][mine].sum()
        assert hits.loc[class_id, "queries"] == (each["relevant"][mine] > 0).sum()


def test_counts_of_a_run_are_kept_under_its_key(dataset, monkeypatch):
    runs = [finished(dataset, seed) for seed in range(2)]
    runs += [
        finished(dataset, 0, fold=fold, protocol="mlrc", folds=2, restore_best=True, eval_every=1) for fold in (0, 1)
    ]
    params = Example.from_values({})
    first, scored = results.hits(runs, params), results.tidy(runs, params)
    for name in ("nearest", "retrieval_per_query"):
        monkeypatch.setattr(retrieval, name, lambda *a, **k: pytest.fail("searched again"))
    pd.testing.assert_frame_equal(results.hits(runs, params), first)
    pd.testing.assert_frame_equal(results.tidy(runs, params), scored)
    with pytest.raises(pytest.fail.Exception, match="searched again"):
        results.hits([finished(dataset, 2)], params)


def test_a_fold_that_kept_its_last_weights_is_left_out(dataset):
    runs = [finished(dataset, 0, fold=fold, folds=2, protocol="mlrc") for fold in range(2)]
    assert results.hits(runs, Example.from_values({})).empty
