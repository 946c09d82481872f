"""Notebooks 91 and 00: their methods are the runs of the papers' notebooks."""

import pytest
from planned import planned

from experiments.across.one_protocol import OneProtocol


@pytest.mark.parametrize("profile", ["small", "paper"])
def test_the_papers_own_methods_are_runs_of_their_notebooks(profile):
    own = {"PFML": "10", "MFCont": "32", "MFCWMS": "32", "C2-CCP-L": "47", "PLM": "50"}
    own |= {"EL-nivMF": "20"} if profile == "small" else {}  # at paper 20 has the protocol of Roth et al.
    if profile == "small":  # where notebook 32 trains three times as long as the others
        del own["MFCont"], own["MFCWMS"]
    here = planned("91", profile)[1]
    for method, name in own.items():
        theirs = [spec.as_dict() for spec in planned(name, profile)[1]]
        mine = [spec for spec in here if spec.method == method]
        assert mine and all(spec.as_dict() in theirs for spec in mine), method


def test_what_the_reader_sets_reaches_every_method():
    for name, value in {"dataset": "cars-subset", "steps": 7}.items():
        specs = planned("91", profile="small", **{name: value})[1]
        assert {getattr(spec, name) for spec in specs if spec.loss} == {value}
    assert {spec.seed for spec in planned("91", profile="small", seeds=2)[1]} == {0, 1}


def test_an_unknown_method_is_an_error():
    with pytest.raises(ValueError, match="unknown method 'PFLM'; did you mean 'PLM'"):
        OneProtocol.from_cell({"methods": ["PFLM"]})


@pytest.mark.parametrize("method", ["PFML", "ProxyAnchor", "Triplet"])
def test_both_runs_of_the_tour_are_runs_of_notebook_10(method):
    ours, theirs = planned("00", method=method)[1], planned("10", methods=["untrained", method], seeds=1)[1]
    assert [spec.method for spec in ours] == ["untrained", "random head", method]
    assert all(spec in theirs for spec in ours)
