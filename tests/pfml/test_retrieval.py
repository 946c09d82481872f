"""Notebook 10: the runs beside the main comparison."""

from experiments.methods import spec_of
from experiments.pfml import retrieval
from experiments.pfml.methods import METHODS


def specs(**values):
    params = retrieval.Retrieval.configured({"seeds": 1, "mlrc_steps": 0, "small_dim": 0} | values)
    return params, retrieval.retrieval(params)


def test_a_repulsion_that_reaches_farther_is_pfml_otherwise_but_for_the_profile_paper():
    params, planned = specs(methods=["ProxyAnchor", "PFML"])
    (farther,) = (spec for spec in planned if spec.setting)
    usual = spec_of(METHODS["PFML"], params)
    assert farther == usual.replace(setting="delta_rep=0.3", loss_options={**usual.loss_options, "delta_rep": 0.3})
    for values in ({"methods": ["ProxyAnchor"]}, {"profile": "paper"}):
        assert {spec.setting for spec in specs(**values)[1]} == {""}


def test_small_embeddings_stand_beside_the_head_they_begin_with():
    _, planned = specs(small_dim=16, methods=["PFML"])
    small, start = (spec for spec in planned if spec.setting == "dim=16")
    assert (small.method, small.embedding_size) == ("PFML", 16)
    assert (start.method, start.embedding_size, start.steps) == ("random head", 16, None)
