"""What is new is published with its provenance; what another processor rounds otherwise is left alone."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from example_tables import EXAMPLE, ROW, table

from experiments.analysis import goldens, provenance, publishing, results, saving, stored
from experiments.training import keys

ROOT = Path(__file__).parents[2]


def build_folder(path, rounding="here", **numbers):
    """Tables named as given, each with its provenance and costs."""
    path.mkdir(parents=True)
    for name, value in numbers.items():
        saved(path / f"{name}.csv", table(value), rounding=rounding, parameters={"steps": 10})
    return path


def saved(path, rows, costs="seconds\n1\n", **made):
    path.write_text(saving.to_csv(rows))
    path.with_suffix(".cost.csv").write_text(costs)
    provenance.seal(path, {"made": rows["value"].iloc[0]} | made)


def test_what_is_new_or_changed_is_published_with_its_provenance(tmp_path):
    target = tmp_path / "results"
    assert publishing.publish(build_folder(tmp_path / "one", a=50.0, b=60.0), target) == (2, 2)
    assert saving.read(target / "a.csv")["value"].item() == 50
    (tmp_path / "two").mkdir()
    build = build_folder(tmp_path / "two" / "quick", a=50.0, b=61.0)
    saved(build / "a.csv", table(50.0), costs="seconds\n2\n", made="again")
    assert publishing.publish(build, target) == (2, 1)
    made = {name: json.loads((target / f"{name}.json").read_text())["made"] for name in "ab"}
    assert made == {"a": 50, "b": 61}
    assert (target / "a.cost.csv").read_text() == "seconds\n1\n"
    assert saving.read(target / "b.csv")["value"].item() == 61


# the notebook whose committed tables have every kind of file
COMMITTED = [path.relative_to(ROOT / "results") for path in sorted((ROOT / "results").glob("*/40_ccp_mnist[.-]*"))]
assert {"".join(path.suffixes[-2:]) for path in COMMITTED} >= {".csv", ".cost.csv", ".json", ".png"}


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
        assert publishing.publish(build, there / file.parent) == (1, 1)
        assert (there / file).read_bytes() == whole
    assert publishing.publish(build, there / file.parent) == (1, 0)


def test_an_edited_table_is_replaced_even_where_another_processor_could_have_made_it(tmp_path, golden):
    target = tmp_path / "results"
    publishing.publish(build_folder(tmp_path / "there", rounding="there", a=50.0), target)
    build = build_folder(tmp_path / "here", a=51.0)
    (target / "a.csv").write_text(saving.to_csv(table(50.5)))
    assert "a.csv is not what was saved" in publishing.outdated(build, target)["a"]
    assert publishing.publish(build, target) == (1, 1)
    assert saving.read(target / "a.csv")["value"].item() == 51
    (build / "a.csv").write_text(saving.to_csv(table(52.0)))
    with pytest.raises(ValueError, match=r"here/a\.csv is not what was saved"):
        publishing.publish(build, target)
    assert saving.read(target / "a.csv")["value"].item() == 51


def test_what_was_edited_is_saved_anew():
    path = saving.save(table(50.0), EXAMPLE.configured({}))
    path.write_text(saving.to_csv(table(60.0)))
    with pytest.raises(ValueError, match="not what was saved"):
        saving.read(path)
    assert saving.read(saving.save(table(50.0), EXAMPLE.configured({})))["value"].item() == 50


@pytest.fixture
def golden(tmp_path, monkeypatch):
    """Golden values of tables a and b, both 50 within 2; this processor rounds as "here" says."""
    monkeypatch.setattr(goldens, "folder", lambda: tmp_path)
    monkeypatch.setattr(keys, "rounding", lambda: "here")
    for name in "ab":
        goldens.means(table(50.0)).assign(tolerance=2.0).to_csv(tmp_path / f"{name}.csv", index=False)


def test_what_another_processor_rounds_otherwise_is_left_alone_and_counted(tmp_path, golden):
    target = tmp_path / "results" / "quick"
    publishing.publish(build_folder(tmp_path / "there", rounding="there", a=50.0, b=50.0), target)
    build = build_folder(tmp_path / "here", a=51.5, b=50.0)
    assert publishing.publish(build, target) == (2, 0)
    assert saving.read(target / "a.csv")["value"].item() == 50
    assert publishing.difference(build, target) == "1 of 1 numbers differ from the committed ones, the largest by 1.50"
    assert publishing.outdated(build, target) == {}
    assert publishing.publish(build, target, everything=True) == (2, 2)
    assert publishing.difference(build, target) == ""
    assert publishing.publish(build, target, everything=True) == (2, 0)


def test_everything_is_of_one_execution_with_its_costs(tmp_path):
    target = tmp_path / "results"
    publishing.publish(build_folder(tmp_path / "one", a=50.0), target)
    build = tmp_path / "two"
    build.mkdir()
    saved(build / "a.csv", table(50.0), costs="seconds\n2\n")
    assert publishing.publish(build, target) == (1, 0)
    assert publishing.publish(build, target, everything=True) == (1, 1)
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
    assert publishing.publish(build, target) == (1, 0)
    assert publishing.outdated(build, target) == {}
    assert publishing.difference(build, target) == "3 of 3 numbers differ from the committed ones, the largest by 0.04"
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
    publishing.publish(build_folder(tmp_path / "there", rounding=made_on, a=50.0), target)
    build = build_folder(tmp_path / "here", a=value)
    assert publishing.outdated(build, target).get("a", "") == why
    beyond = "beyond" in why
    assert publishing.publish(build, target) == (
        1,
        int(beyond),
    )  # `git status` stays clean where no tolerance is exceeded
    assert publishing.outdated(build, target).get("a", "") == why


def test_other_rows_and_other_parameters_are_named_wherever_they_come_from(tmp_path, golden):
    target = tmp_path / "results"
    publishing.publish(build_folder(tmp_path / "there", rounding="there", a=50.0), target)
    build = build_folder(tmp_path / "here", a=50.0)
    saved(build / "a.csv", table(50.1), rounding="here", parameters={"steps": 12, "added": 1})
    assert publishing.outdated(build, target) == {"a": "it was made with other parameters (steps)"}
    saved(build / "a.csv", table(50.0), rounding="here", parameters={"steps": 12})  # which it does not depend on
    assert publishing.outdated(build, target) == {}
    more = pd.concat([table(50.0), table(50.0).assign(metric="R@2")])
    saved(build / "a.csv", more, rounding="here", parameters={"steps": 10})
    assert publishing.outdated(build, target) == {"a": "1 rows are in one of the two only"}
    assert publishing.publish(build, target) == (1, 1)
    assert publishing.outdated(build, target) == {}


def test_a_table_of_another_profile_has_no_golden_values(tmp_path, golden):
    target, build = tmp_path / "results", tmp_path / "build"
    for folder, value in ((target, 50.0), (build, 50.5)):
        folder.mkdir()
        saved(folder / "a.csv", table(value).assign(profile="small"), rounding=str(folder), parameters={})
    assert publishing.publish(build, target) == (1, 1)


def test_one_bad_table_publishes_nothing(tmp_path):
    build = build_folder(tmp_path / "build", a=50.0, b=60.0)
    text = (build / "b.csv").read_text()
    (build / "b.csv").write_text(text.replace("60.000000", "160.000000"))
    provenance.seal(build / "b.csv", {})
    with pytest.raises(ValueError, match=r"b\.csv: percentages must lie in \[0, 100\]"):
        publishing.publish(build, tmp_path / "results")
    assert not (tmp_path / "results").exists()
    with pytest.raises(FileNotFoundError, match="no tables in"):
        publishing.publish(tmp_path / "results", tmp_path / "results")


def test_what_other_notebooks_left_in_the_build_folder_stays_there(tmp_path):
    target = tmp_path / "results"
    publishing.publish(build_folder(tmp_path / "one", a=50.0, b=60.0), target)
    build = build_folder(tmp_path / "two", **{"a": 51.0, "a--steps=5": 52.0, "b": 61.0})
    assert publishing.publish(build, target, ["a"], everything=True) == (2, 2)
    assert [saving.read(target / f"{name}.csv")["value"].item() for name in ("a", "b")] == [51, 60]
    with pytest.raises(FileNotFoundError, match=r"no tables of c in .*two; run them first"):
        publishing.publish(build, target, ["c"])


def test_a_table_of_a_loss_of_the_readers_own_goes_beside(tmp_path):
    build, target = tmp_path / "build" / "quick", tmp_path / "results" / "quick"
    build.mkdir(parents=True)
    saved(build / "03_your_loss.csv", table(50.0), own=True, parameters={"dataset": "glyphs"})
    assert publishing.publish(build, target) == (1, 1)
    assert (tmp_path / "results" / "own" / "quick" / "03_your_loss.csv").exists() and not target.exists()
