"""Each benchmark compares forms that compute the same, sees a form that does not, and leaves out what has no data."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import harness
import pytest

FOLDER = Path(harness.__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "harness"))
def test_its_small_case_runs(name):
    done = subprocess.run([sys.executable, FOLDER / f"{name}.py", "--quick"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr


def test_a_set_that_is_missing_is_left_out(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path))
    benchmark = import_module("loop")
    assert benchmark.main({"absent": benchmark.CASES["cub-subset PFML"]}) == ([], False)
    assert "absent: left out" in capsys.readouterr().err


def test_metrics_are_timed_once_they_agree(monkeypatch):
    benchmark = import_module("metrics")
    seconds = benchmark.seconds("tiny")
    assert list(seconds) == ["product", "deep", "matmul", "PML", "PML deep"] and min(seconds.values()) > 0
    for form in ("product", "deep"):
        with monkeypatch.context() as patch:
            right = benchmark.FORMS[form]
            patch.setitem(benchmark.FORMS, form, lambda *data, right=right: (*right(*data)[:-1], 0.5))
            with pytest.raises(AssertionError, match=f"{form} has .*0.5.*, PML"):
                benchmark.seconds("tiny")
