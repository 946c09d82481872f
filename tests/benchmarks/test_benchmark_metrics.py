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
