"""The studies of PLM: the default point is one run, published settings are those of the text, what is measured."""

from types import SimpleNamespace

import pytest
import torch
from planned import planned

from dmlrepro import metrics
from dmlrepro.losses.piecewise_linear import linear_neighborhoods
from experiments.plm import methods, retrieval, supervision

PRINTED = {"k": 9, "dim": 3, "quality": 0.9, "n_alpha": 4.0, "n_beta": 0.5, "delta": 2.0}  # of PLM's loss


def test_no_method_of_plm_uses_labels():
    for name, method in methods.OWN.items():
        assert not method.offered and method.fields["algorithm"] in ("momentum_encoder", "pseudo_labels"), name


def test_a_pair_of_decays_has_a_form():
    with pytest.raises(ValueError, match=r'pairs must be written "N_alpha/N_beta", as "4/0\.5", got .4.'):
        planned("54", pairs=["4"])


def test_supervision_is_measured_as_in_table_2():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(6).repeat_interleave(15)
    features = torch.randn(6, 12, generator=generator)[labels] + 0.7 * torch.randn(90, 12, generator=generator)
    params = supervision.Supervision.configured({})
    rows = dict(supervision.quality_of(features, labels, params.k, params.dim, params.quality))
    assert {"PLM", "nearest", "cosine", "K-Means", "Hierarchical", "Random Walk"} < set(rows)
    members = linear_neighborhoods(torch.nn.functional.normalize(features.double(), dim=1), params.k)[1]
    assert rows["PLM"]["label_purity"] == metrics.label_purity(members, labels)
    assert rows["PLM"]["members"] == members.sum(1).double().mean().item()
    unit = torch.nn.functional.normalize(features.double(), dim=1)
    order, sizes = (unit @ unit.T).argsort(1, descending=True), members.sum(1)  # a point is the nearest to itself
    same = [(labels[order[i, :n]] == labels[i]).double().mean() for i, n in enumerate(sizes.tolist())]
    assert rows["nearest"]["label_purity"] == pytest.approx(torch.stack(same).mean().item())
    groups = supervision.clusters.hierarchical(unit, 6, 0)
    correlation = metrics.similarity_correlation((groups[:, None] == groups).double(), labels)
    found = {"label_purity": metrics.label_purity(groups, labels), "gt_correlation": correlation}
    assert rows["Hierarchical"] == found and found["label_purity"] != pytest.approx(correlation, abs=0.01)


def test_seeds_take_turns_in_the_classes_that_they_leave_out():
    """Of a mean over classes the pseudo-value of a seed is the mean of the classes that it leaves out."""
    of_class = torch.rand(20, generator=torch.Generator().manual_seed(0)).double()
    part = torch.arange(20) % 5
    measured = [
        [[("PLM", {"purity": of_class.mean().item()})], [("PLM", {"purity": of_class[part != seed].mean().item()})]]
        for seed in range(5)
    ]
    values = [of_seed["PLM"]["purity"] for of_seed in supervision.of_seeds(measured, 5)]
    assert values == pytest.approx([of_class[part == seed].mean().item() for seed in range(5)])
    two = supervision.of_seeds([ways[:1] for ways in measured[:2]], 2)  # too few for an interval
    assert two == [{"PLM": {"purity": pytest.approx(of_class.mean().item())}}] * 2


def test_apart_are_distances_on_the_sphere_and_what_equation_6_asks_for():
    embeddings = 3 * torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    points = torch.nn.functional.normalize(embeddings.double(), dim=1)
    bases, _ = linear_neighborhoods(points, k=9, dim=3, quality=0.9)

    def one_way(i, j):
        difference = points[i] - points[j]
        along = bases[j] @ difference
        across = difference - along @ bases[j]
        return (1 + across.norm() / 2) ** -4.0 * (1 + along.norm()) ** -0.5

    pairs = {(i, j): (points[i] - points[j]).norm() for i in range(30) for j in range(30) if i != j}
    asked = {(i, j): 2 * (1 - (one_way(i, j) + one_way(j, i)) / 2) for i, j in pairs}
    nearest = [min((pair for pair in pairs if pair[0] == i), key=pairs.get) for i in range(30)]
    distances = retrieval.apart(SimpleNamespace(embeddings=embeddings), PRINTED)
    assert set(distances) == set(retrieval.DISTANCES)
    for name, values in (("distance", pairs), ("asked", asked)):
        assert distances[f"mean_{name}"] == pytest.approx(float(sum(values.values())) / 870)
        assert distances[f"nearest_{name}"] == pytest.approx(float(sum(values[pair] for pair in nearest)) / 30)
    collapsed = retrieval.apart(SimpleNamespace(embeddings=torch.ones(20, 4)))
    assert collapsed == {"nearest_distance": 0.0, "mean_distance": 0.0}
