"""What is new is published with its provenance; what another processor rounds otherwise is left alone."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from example_tables import ROW, table

from experiments.analysis import goldens, results, saving, stored
from experiments.report import regression
from experiments.training import keys

ROOT = Path(__file__).parents[2]


def build_folder(path, rounding="here", costs="seconds\n1\n", steps=10, **tables):
    """Tables by name, or single values, each with its provenance and costs."""
    path.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        rows = rows if isinstance(rows, pd.DataFrame) else table(rows)
        (path / f"{name}.csv").write_text(saving.to_csv(rows))
        (path / f"{name}.cost.csv").write_text(costs)
        made = {"rounding": rounding, "parameters": {"steps": steps}}
        saving.seal(path / f"{name}.csv", made | {"made": rows["value"].iloc[0]})
    return path


def value(path):
    return saving.read(path)["value"].iloc[0]


def test_what_is_new_or_changed_is_published_with_its_provenance_and_everything_with_its_costs(tmp_path):
    target = tmp_path / "results"
    assert regression.publish(build_folder(tmp_path / "one", a=50.0, b=60.0), target) == (2, 2)
    assert value(target / "a.csv") == 50
    build = build_folder(tmp_path / "two", costs="seconds\n2\n", a=50.0, b=61.0)
    assert regression.publish(build, target) == (2, 1)
    assert [json.loads((target / f"{name}.json").read_text())["made"] for name in "ab"] == [50, 61]
    assert (target / "a.cost.csv").read_text() == "seconds\n1\n" and value(target / "b.csv") == 61
    assert regression.publish(build, target, everything=True) == (2, 1)
    assert (target / "a.cost.csv").read_text() == "seconds\n2\n" and not saving.damage(target / "a.csv")


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
        assert regression.publish(build, there / file.parent) == (1, 1)
        assert (there / file).read_bytes() == whole
    assert regression.publish(build, there / file.parent) == (1, 0)


def test_an_edited_table_is_replaced_even_where_another_processor_could_have_made_it(tmp_path, golden):
    target = tmp_path / "results"
    regression.publish(build_folder(tmp_path / "there", rounding="there", a=50.0), target)
    build = build_folder(tmp_path / "here", a=51.0)
    (target / "a.csv").write_text(saving.to_csv(table(50.5)))
    assert "a.csv is not what was saved" in regression.outdated(build, target)["a"]
    assert regression.publish(build, target) == (1, 1) and value(target / "a.csv") == 51
    (build / "a.csv").write_text(saving.to_csv(table(52.0)))
    with pytest.raises(ValueError, match=r"here/a\.csv is not what was saved"):
        regression.publish(build, target)
    assert value(target / "a.csv") == 51


@pytest.fixture
def golden(tmp_path, monkeypatch):
    """Golden values of tables a and b, both 50 within 2; this processor rounds as "here" says."""
    monkeypatch.setattr(goldens, "folder", lambda: tmp_path)
    monkeypatch.setattr(keys, "rounding", lambda: "here")
    for name in "ab":
        goldens.means(table(50.0)).assign(tolerance=2.0).to_csv(tmp_path / f"{name}.csv", index=False)


def test_what_another_processor_rounds_otherwise_is_left_alone(tmp_path, golden):
    target = tmp_path / "results" / "quick"
    regression.publish(build_folder(tmp_path / "there", rounding="there", a=50.0, b=50.0), target)
    build = build_folder(tmp_path / "here", a=51.5, b=50.0)
    assert regression.publish(build, target) == (2, 0) and value(target / "a.csv") == 50
    assert regression.outdated(build, target) == {}
    assert regression.publish(build, target, everything=True) == (2, 2)
    assert regression.publish(build, target, everything=True) == (2, 0)


def early_stopped(step, value=50.0):
    """A run that stopped at a step, and was best on validation classes before."""
    rows = [
        ROW | {"metric": "R@1", "value": value, "selection": selection, "step": step - before}
        for selection, before in (("last", 0), ("val_best", 20), ("test_best", 30))
    ]
    return results.frame(rows)


def test_another_step_of_an_early_stop_is_another_outcome_and_not_another_row(tmp_path, golden):
    target = build_folder(tmp_path / "results", rounding="there", a=early_stopped(100, 50.1))
    build = build_folder(tmp_path / "build", a=early_stopped(140, 50.14))
    assert regression.publish(build, target) == (1, 0)
    assert regression.outdated(build, target) == {}


@pytest.mark.parametrize(
    ("made_on", "number", "why"),
    [
        ("there", 53.0, "1 golden values are beyond their tolerance"),
        ("here", 50.001, "1 of 1 numbers differ, on a processor with the same rounding"),
        ("here", 50.000001, ""),  # the last digit that is written
        ("there", 50.001, ""),
    ],
)
def test_a_committed_table_that_the_present_code_does_not_make_is_named(made_on, number, why, tmp_path, golden):
    """It is published only where a tolerance is exceeded, so that `git status` stays clean elsewhere."""
    target = build_folder(tmp_path / "results", rounding=made_on, a=50.0)
    build = build_folder(tmp_path / "here", a=number)
    assert regression.outdated(build, target).get("a", "") == why
    assert regression.publish(build, target) == (1, int("beyond" in why))


def test_other_rows_and_other_parameters_are_named_and_other_profiles_have_no_golden_values(tmp_path, golden):
    target, build = build_folder(tmp_path / "results", rounding="there", a=50.0), tmp_path / "here"
    build_folder(build, steps=12, a=50.1)
    assert regression.outdated(build, target) == {"a": "it was made with other parameters (steps)"}
    build_folder(build, steps=12, a=50.0)  # which it does not depend on
    assert regression.outdated(build, target) == {}
    build_folder(build, a=pd.concat([table(50.0), table(50.0).assign(metric="R@2")]))
    assert regression.outdated(build, target) == {"a": "1 rows are in one of the two only"}
    assert regression.publish(build, target) == (1, 1) and regression.outdated(build, target) == {}
    target = build_folder(tmp_path / "results", rounding="there", a=table(50.0).assign(profile="small"))
    build = build_folder(tmp_path / "build", a=table(50.5).assign(profile="small"))
    assert regression.publish(build, target) == (1, 1)


def test_one_bad_table_publishes_nothing(tmp_path):
    build = build_folder(tmp_path / "build", a=50.0, b=60.0)
    text = (build / "b.csv").read_text()
    (build / "b.csv").write_text(text.replace("60.000000", "160.000000"))
    saving.seal(build / "b.csv", {})
    with pytest.raises(ValueError, match=r"b\.csv: percentages must lie in \[0, 100\]"):
        regression.publish(build, tmp_path / "results")
    assert not (tmp_path / "results").exists()
    with pytest.raises(FileNotFoundError, match="no tables in"):
        regression.publish(tmp_path / "results", tmp_path / "results")


def test_what_other_notebooks_left_in_the_build_folder_stays_there(tmp_path):
    target = tmp_path / "results"
    regression.publish(build_folder(tmp_path / "one", a=50.0, b=60.0), target)
    build = build_folder(tmp_path / "two", **{"a": 51.0, "a--steps=5": 52.0, "b": 61.0})
    assert regression.publish(build, target, ["a"], everything=True) == (2, 2)
    assert [value(target / f"{name}.csv") for name in "ab"] == [51, 60]
    with pytest.raises(FileNotFoundError, match=r"no tables of c in .*two; run them first"):
        regression.publish(build, target, ["c"])
