"""The figures by which notebooks explain a method show what the method does."""

import matplotlib.pyplot as plt
import pytest
import torch

from dmlrepro.losses.potential_field import contrastive_field, decaying_field
from experiments.meanfield import idea as meanfield
from experiments.pfml import idea as pfml
from experiments.plm import idea as plm


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_pull_decays_under_pfml_and_grows_under_cpml():
    distances = torch.tensor([0.2, 0.4, 2**0.5], dtype=torch.float64)
    near, twice, right = pfml.force_at(distances, decaying_field(3.0, 0.2), same_class=True).tolist()
    assert near == pytest.approx(1875) and twice == pytest.approx(1875 / 16) and right == pytest.approx(0.75)
    growing = pfml.force_at(distances, contrastive_field(0.2), same_class=True)
    assert (growing.diff() > 0).all()
    assert pfml.force_at(distances[2:], decaying_field(3.0, 0.2), same_class=False).item() == 0


def positions(figure, panel: int, label: str) -> torch.Tensor:
    (found,) = [dots for dots in figure.axes[panel].collections if dots.get_label() == label]
    return torch.as_tensor(found.get_offsets().data)


def test_pfml_keeps_two_clusters_that_cpml_merges():
    figure = pfml.slide(steps=60)
    spreads = [positions(figure, panel, "class 0")[:, 0].std().item() for panel in (0, 3, 7)]
    assert spreads[1] > 0.9 * spreads[0] and spreads[2] < 0.2 * spreads[0]


def test_only_a_mean_field_loss_pulls_an_image_that_is_halfway_there():
    lines = {line.get_label(): line.get_ydata() for line in meanfield.forces().axes[0].lines}
    halfway = 100  # 1 - cos = 0.5
    assert lines["MFCont"][halfway] == 1 and lines["ProxyAnchor"][halfway] < 1e-3


def test_far_from_its_class_a_point_feels_a_pull_under_cpml_alone():
    pfml_map, cpml_map = (mesh.get_array() for axis in pfml.field_map().axes[:2] for mesh in axis.collections[:1])
    assert abs(pfml_map[0, 0]) < 0.1 and cpml_map[0, 0] > 100, "the corner, in pulls at the rim times its radius"


def test_a_pair_loss_has_276_terms_where_mean_fields_have_72_and_fields_reach_the_mean_of_classes_that_lie_apart():
    pairs, fields, right = meanfield.pairs_and_fields().axes
    assert [len(axis.lines) for axis in (pairs, fields)] == [276, 72]
    apart, crowded = (line.get_ydata()[-1] for line in right.lines[:2])
    assert apart < 0.5 and crowded > 1


def test_a_piece_keeps_some_neighbours_of_a_bend_and_rejects_others():
    kept, rejected = (positions(plm.piece(), 0, name) for name in ("kept", "rejected"))
    assert len(kept) + len(rejected) == 10 and min(len(kept), len(rejected)) > 1
