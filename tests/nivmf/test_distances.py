"""Notebook 22: the norm in the distances."""

import pytest
import torch
import torch.nn.functional as F

from dmlrepro import vmf
from dmlrepro.losses import nivmf as losses
from experiments import studies
from experiments.analysis import judging
from experiments.nivmf import distances
from experiments.nivmf.claims import TESTS


def judged(rows):
    table = studies.study_rows(distances.Distances.configured({}), rows)
    return judging.judge(table, TESTS, ["nivmf-15"])


def test_what_the_definitions_imply_holds_and_in_few_dimensions_the_likeness_to_l2_ends(monkeypatch):
    judgement = judged(distances.exact_rows(range(3)))
    rows = judgement.comparisons.set_index(["comparison", "metric"])["outcome"]
    like = rows[rows.index.get_level_values("metric") == "growth_over_l2"]
    assert set(rows.drop(like.index)) == {"supported"} == set(like)
    assert judgement.verdicts["verdict"].item() == "supported"
    monkeypatch.setattr(distances, "PAPER_DIM", 64)
    judgement = judged(distances.exact_rows(range(3)))
    like = judgement.comparisons.set_index("comparison")["outcome"]
    assert like["B-vMF;norm=10 vs 0.5"] == "supported"
    assert like["B-vMF;norm=1000 vs 0.5"] == "contradicted"  # its gradient is bounded, L2's grows without end
    assert judgement.verdicts["verdict"].item() == "mixed"


@pytest.mark.parametrize("method", ["L2", "B-vMF"])
def test_logits_by_cosine_turn_one_proxy_each(method):
    generator = torch.Generator().manual_seed(0)
    proxies = torch.randn(4, 8, dtype=torch.float64, generator=generator)
    embedding = torch.randn(8, dtype=torch.float64, generator=generator)
    logits, cosines = distances.logits_by_cosine(method, embedding, proxies)
    torch.testing.assert_close(cosines, F.cosine_similarity(proxies, embedding[None], dim=1))
    plain = -distances._distance(method)(embedding[None], proxies)[0]
    torch.testing.assert_close(logits, plain / distances.COMPARABLE[method])
    jacobian = torch.stack([torch.autograd.grad(x, cosines, retain_graph=True)[0] for x in logits])
    assert (jacobian.diagonal() > 0).all()
    assert jacobian.fill_diagonal_(0).abs().max() < 1e-12


def test_a_wrong_factor_in_a_distance_and_a_cosine_that_sees_the_norm_are_noticed(monkeypatch):
    l2, cosine = losses.l2_distance, losses.cosine_distance
    monkeypatch.setattr(losses, "l2_distance", lambda z, p: l2(z, p) / 2)
    errors = [row["value"] for row in distances.exact_rows(range(2)) if row["metric"] == "gradient_error"]
    assert sum(error > 0.1 for error in errors) == 2  # L2's, not Cosine's
    monkeypatch.setattr(losses, "cosine_distance", lambda z, p: cosine(z, p) * z.norm(dim=1, keepdim=True) ** 0.01)
    values = [r["value"] for r in distances.exact_rows([0]) if r["method"] == "Cosine" and "norm" in r["metric"]]
    assert min(values) > 1e-3


def test_gradient_scales_are_the_factors_of_equations_8_and_9():
    generator = torch.Generator().manual_seed(0)
    kappa, t, norms = distances.PROXY_NORM, distances.COMPARABLE, distances.GROWN
    proxies, (direction,) = kappa * distances._directions(5, generator), distances._directions(1, generator)
    expected = {
        "Cosine": torch.full_like(norms, 1 / t["Cosine"]),
        "L2": 2 * kappa * norms / t["L2"],
        "KL-vMF": kappa * vmf.mean_resultant_length(norms, 64),
    }
    for method, scale in expected.items():
        found = distances.gradient_scale(method, direction, proxies)
        torch.testing.assert_close(found, scale, rtol=1e-9, atol=0)
