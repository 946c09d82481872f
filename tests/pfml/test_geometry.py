"""The equilibrium search against minima known in closed form, and what the study says about Corollary 1."""

import math

import numpy as np
import pytest
import torch

from dmlrepro.losses.potential_field import contrastive_field, decaying_field
from experiments.pfml import alignment, idea


def rest(starts, points, field):
    return alignment.equilibrium(starts, points, field, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("field", [decaying_field(delta=0.5), contrastive_field(delta=0.5)])
def test_a_lone_sample_lets_a_proxy_rest_anywhere_within_delta(field):
    point, start = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([[3.0, 1.0]], dtype=torch.float64)
    assert rest(start, point, field).norm() <= 0.5
    inside = torch.tensor([[0.3, 0.0]], dtype=torch.float64)
    assert torch.equal(rest(inside, point, field), inside)


def test_a_second_sample_holds_a_proxy_at_delta_and_contrastive_ones_meet_at_the_mean():
    points = torch.tensor([[0.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    starts = torch.tensor([[-1.0, 0.5], [3.9, 0.2]], dtype=torch.float64)
    expected = torch.tensor([[0.5, 0.0], [3.5, 0.0]], dtype=torch.float64)
    places = rest(starts, points, decaying_field(delta=0.5))
    assert (places - points).norm(dim=1).tolist() == pytest.approx([0.5, 0.5], abs=1e-5)
    assert torch.allclose(places, expected, atol=0.03)
    # outside all balls CPML's attraction is n |r - mean|^2 + constant
    points = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    starts = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(rest(starts, points, contrastive_field(delta=0.2)), points.mean(0), atol=1e-4)


def test_matching_cost_and_bounds_and_proxies_that_cannot_part():
    points = torch.tensor([[0.0, 0.0], [3.0, 0.0], [9.0, 9.0]], dtype=torch.float64)
    proxies = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)  # the second must go to (3, 0)
    assert alignment.matching_cost(proxies, points) == pytest.approx((0 + 2) / 2)
    assert alignment.matching_cost(proxies, points, power=2) == pytest.approx(math.sqrt((0 + 4) / 2))
    assert alignment.hypothesis_limit(points) == pytest.approx(3 / (2 * (1 + 1 / 3)))
    corners = alignment.simplex(5)
    assert corners.shape == (5, 4)
    assert torch.allclose(torch.pdist(corners), torch.tensor(math.sqrt(2), dtype=torch.float64))
    points = torch.tensor([[0.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match="num_proxies=2"):
        alignment.compare(points, 0.5, 2, seed=0, start_spread=0.0)


def test_what_holds_of_the_corollary():
    values = {(r["method"], r["setting"]): r["value"] for r in alignment.study([3]) if r["metric"] == "W2/delta"}
    for m in (1, 2, 5):
        assert values["PFML", f"M={m}"] == pytest.approx(1, abs=1e-4)
    assert values["CPML", "M=2"] > 1 and values["CPML", "M=5"] > 1
    assert values["CPML", "M=1"] < 1  # the corollary fails with one proxy
    assert values["CPML", "M=1;case=a sample at the mean"] == pytest.approx(0, abs=1e-4)
    assert all(value < 1 for (_, setting), value in values.items() if setting.endswith("closer than delta"))
    assert values["PFML", "M=1;case=simplex in 11 dimensions"] > 1.5  # trapped at the centroid, far from every sample


def test_the_picture_points_downhill():
    axis, psi, force, *_ = (tensor.numpy() for tensor in idea.picture("PFML", cells=400))
    slope_y, slope_x = np.gradient(psi, axis[1] - axis[0])
    smooth = np.hypot(slope_x, slope_y) < 100  # away from the rims, where the force jumps
    cosine = -(force[..., 0] * slope_x + force[..., 1] * slope_y)[smooth]
    cosine /= np.maximum(np.linalg.norm(force, axis=-1) * np.hypot(slope_x, slope_y), 1e-9)[smooth]
    assert np.median(cosine) > 0.999 and (cosine > 0.9).mean() > 0.97
