"""The benchmark of the metrics compares what is equal, and its limits can be missed."""

import pytest


def test_forms_are_timed_once_they_agree(benchmark, monkeypatch):
    seconds = benchmark.seconds("tiny")
    assert list(seconds) == ["product", "deep", "matmul", "PML", "PML deep"] and min(seconds.values()) > 0
    for form in ("product", "deep"):
        with monkeypatch.context() as patch:
            right = benchmark.FORMS[form]
            patch.setitem(benchmark.FORMS, form, lambda *data, right=right: (*right(*data)[:-1], 0.5))
            with pytest.raises(AssertionError, match=f"{form} has .*0.5.*, PML"):
                benchmark.seconds("tiny")


def test_every_limit_is_judged(benchmark, capsys):
    shape = {"case": "12,000", "size": 12_000, "dim": 256}
    seconds = {"product": 1.2, "matmul": 1.0, "PML": 1.4, "deep": 2.4, "PML deep": 2.5}
    rows = [shape | {"form": form, "metric": "seconds", "value": value} for form, value in seconds.items()]
    rows.append(shape | {"form": "product", "metric": "megabytes", "value": 900.0})
    assert benchmark.judge(rows)
    shown = capsys.readouterr().out
    assert "12,000: seconds over the matmul's 1.2 (limit: at most 1.3)" in shown
    assert "12,000, deep: seconds over the matmul's 2.4 (limit: at most 2.5)" in shown
    for i, value in ((0, 1.35), (1, 0.9), (2, 0.9), (3, 2.6), (4, 2.3), (5, 1001.0)):
        worse = rows[i] | {"value": value}
        assert not benchmark.judge([*rows[:i], worse, *rows[i + 1 :]])
