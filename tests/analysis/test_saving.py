"""Tables are validated whole and written whole, and refused where they are not as they were saved."""

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import matplotlib.figure
import pandas as pd
import pytest
from example_tables import EXAMPLE, table

from experiments.analysis import saving, stored
from experiments.report import regression
from experiments.training import keys

ROOT = Path(__file__).parents[2]


def params_of(**given) -> SimpleNamespace:
    """As of a notebook, whatever else they are."""
    names = {"notebook": "99_example", "stem": "99_example", "profile": "quick"} | given
    return SimpleNamespace(**{"as_dict": lambda: given, "searches": dict} | names)


def test_what_is_written_is_read_back_and_what_was_edited_is_refused_until_it_is_saved_anew():
    path = saving.save(table(50.0, 60.0), EXAMPLE.configured({}))
    pd.testing.assert_frame_equal(saving.read(path), table(50.0, 60.0), check_dtype=False)
    assert path.name == "99_example.csv" and path.with_suffix(".json").exists()
    path.write_text(saving.to_csv(table(50.0, 61.0)))
    with pytest.raises(ValueError, match="not what was saved"):
        saving.read(path)
    assert len(saving.read(saving.save(table(50.0), EXAMPLE.configured({})))) == 1


def test_a_bad_row_is_named_and_nothing_is_written():
    params = EXAMPLE.configured({})
    good = saving.save(table(50.0), params).read_bytes()
    bad = pd.concat([table(50.0), table(50.0).assign(seed=1, value=101.0)], ignore_index=True)
    with pytest.raises(ValueError, match=r"\[0, 100\]"):
        saving.save(bad, params)
    assert (saving.output_folder("quick") / "99_example.csv").read_bytes() == good


def test_unchanged_numbers_keep_their_provenance_but_for_the_search_and_the_parameters(tmp_path, monkeypatch):
    """As after a change of what a profile decides."""
    found = {"method": "PFML", "trials": [{}] * 16, "sha256": "1f"}
    for steps, searches in ((2, {}), (3, {"PFML": found})):
        how = {"as_dict": lambda steps=steps: {"steps": steps}, "searches": lambda searches=searches: searches}
        path = saving.save(table(50.0), params_of(**how, search_name=str), runs=[run_on("CPU", "a")])
        regression.publish(path.parent, tmp_path / "published")
        for there in (path, tmp_path / "published" / path.name):
            made = saving.record(there)
            assert bool(made.get("searches")) == bool(searches) and made["parameters"] == {"steps": steps}
    params = EXAMPLE.configured({})
    path = saving.save(table(50.0), params)
    before = path.with_suffix(".json").read_text()
    monkeypatch.setattr(saving, "provenance", lambda *_: {"git_commit": "another"})
    saving.save(table(50.0), params)
    assert path.with_suffix(".json").read_text() == before
    saving.save(table(51.0), params)
    assert "another" in path.with_suffix(".json").read_text()


def test_values_have_their_digits_and_order_whatever_holds_them():
    """As after a table was joined with an empty one, whose columns are of objects."""
    plain = table(100 / 3, 60.0)
    objects, reversed_rows = plain.astype({"value": object}), plain.iloc[::-1]
    assert saving.to_csv(objects) == saving.to_csv(plain) == saving.to_csv(reversed_rows)
    assert "33.333333\n" in saving.to_csv(plain)


def test_a_picture_is_saved_and_published_beside_its_table_but_not_at_quick(tmp_path, monkeypatch):
    figure = matplotlib.figure.Figure()
    monkeypatch.setenv("DMLREPRO_RESULTS", str(tmp_path / "build"))
    made = {profile: EXAMPLE.configured({"profile": profile}) for profile in ("quick", "small")}
    with pytest.raises(ValueError, match=r"small/99_example\.json is missing"):
        saving.save_picture(figure, made["small"])
    for params in made.values():
        saving.save(table(50.0, 60.0), params)
        saving.save_picture(figure, params)
    assert [path.parent.name for path in tmp_path.rglob("*.png")] == ["small"]
    assert regression.publish(tmp_path / "build" / "small", tmp_path / "results") == (1, 1)
    picture = tmp_path / "results" / "99_example.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and not saving.damage(picture.with_suffix(".csv"))
    saving.save(table(51.0), made["small"])  # a picture of other numbers goes
    assert regression.publish(tmp_path / "build" / "small", tmp_path / "results") == (1, 1)
    assert not picture.exists() and saving.read(picture.with_suffix(".csv"))["value"].item() == 51


def run_on(device: str, key: str, **made) -> SimpleNamespace:
    commit = {"git_commit": "c0", "versions": {"torch": "2"}, "rounding": f"as {device}"}
    spec = SimpleNamespace(method="PFML", setting="", seed=0)
    made = {"device": device, **commit, **made}
    return SimpleNamespace(key=key, made=made, spec=spec, cost={"seconds": 1.0}, line=None)


def test_provenance_and_costs_are_those_of_the_runs_that_were_used_and_not_of_this_machine():
    params = EXAMPLE.configured({})
    gpu = [run_on("NVIDIA X", "a"), run_on("NVIDIA X", "b"), run_on("NVIDIA X", "b")]  # one twice in a table
    made = json.loads(saving.save(table(50.0), params, runs=gpu).with_suffix(".json").read_text())
    assert (made["device"], made["rounding"]) == ("NVIDIA X", "as NVIDIA X")
    assert [(group["count"], group["git_commit"], group["device"]) for group in made["runs"]] == [(2, "c0", "NVIDIA X")]
    mixed = saving.provenance(params, [*gpu, run_on("CPU x86_64", "c", git_commit="c1")])
    assert mixed["device"] == "CPU x86_64 + NVIDIA X"
    assert {(group["git_commit"], group["count"]) for group in mixed["runs"]} == {("c0", 2), ("c1", 1)}
    assert saving.provenance(params)["device"] == keys.device_name()
    path = saving.save(table(50.0), params, runs=[run_on("X", "a")]).with_suffix(".cost.csv")
    assert path.read_text().splitlines()[1] == "PFML,,0,1"
    saving.save(table(50.0), params, runs=[run_on("X", "a")], cost=pd.DataFrame({"seconds": [2]}))
    assert path.read_text().splitlines() == ["seconds", "2"]


def test_no_committed_table_was_edited():
    tables = [path for folder in ("quick", "small") for path in saving.table_paths(ROOT / "results" / folder)]
    assert len(tables) > 40
    assert [saving.damage(path) for path in tables if saving.damage(path)] == []


def test_what_own_images_gave_lies_apart_and_no_page_reads_it(tmp_path, monkeypatch):
    """As after the README's command on a folder: the tables that pages are made of are the same as before."""
    shutil.copytree(ROOT / "results" / "quick", tmp_path / "results" / "quick")
    for module in (saving, stored):
        monkeypatch.setattr(module, "repository_root", lambda: tmp_path)
    monkeypatch.delenv("DMLREPRO_RESULTS")
    before = [saved.stem for saved in stored.stored("01_your_images")]
    own = params_of(notebook="01_your_images", stem="01_your_images--x", dataset="folder:secret")
    assert saving.save(table(50.0), own).relative_to(tmp_path) == Path("results/own/quick/01_your_images--x.csv")
    assert [saved.stem for saved in stored.stored("01_your_images")] == before
    assert "01_your_images--x" not in [path.stem for path in saving.table_paths(tmp_path / "results" / "quick")]
    ignored = subprocess.run(["git", "check-ignore", "-q", "results/own/quick/x.csv"], cwd=ROOT)
    assert ignored.returncode == 0


def test_a_build_folder_publishes_own_images_and_own_losses_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_RESULTS", str(tmp_path / "build"))
    saving.save(table(50.0), params_of(stem="99_example--mine", dataset="manifest:mine.csv"))
    saving.save(table(60.0), params_of(notebook="03_your_loss", stem="03_your_loss", own=True))
    saving.save(table(60.0), EXAMPLE.configured({}))
    assert regression.publish(tmp_path / "build" / "quick", tmp_path / "results" / "quick") == (3, 3)
    paths = sorted(path.relative_to(tmp_path / "results").as_posix() for path in tmp_path.glob("results/**/*.csv"))
    assert paths == ["own/quick/03_your_loss.csv", "own/quick/99_example--mine.csv", "quick/99_example.csv"]
