"""Notebook 00: it trains nothing that notebook 10 does not train."""

import pytest

from experiments.report import catalogue


@pytest.mark.parametrize("method", ["PFML", "ProxyAnchor", "Triplet"])
def test_both_runs_are_runs_of_notebook_10(method):
    tour, retrieval = catalogue.find("00"), catalogue.find("10")
    ours = tour.specs(tour.configured({"method": method}))
    theirs = retrieval.specs(retrieval.configured({"methods": ["untrained", method], "seeds": 1}))
    assert [spec.method for spec in ours] == ["untrained", "random head", method]
    assert all(spec in theirs for spec in ours)
