"""The tail of a network on cached activations: it trains as the whole network does whose lower part is frozen."""

import numpy as np
import pytest
import torch
from tiny import PLM, TINY, resumed

from experiments.networks import backbones
from experiments.training import activations, batches, inference, loop
from experiments.training.activations import Activations

TAIL = TINY.replace(train_from="block3", steps=10)
OF_VIEWS = {"image_size": 24, "test_resize": 28, "train_from": "block3"}
CROPS = TINY.replace(**OF_VIEWS)
ALGORITHMS = {
    "CCP": CROPS.replace(
        algorithm="chance_constrained",
        loss="chance_constrained.ProxyContrastiveLoss",
        algorithm_options={"proxies_per_class": 2, "pool_size": 3, "problem_patience": 1},
        fold=0,
        eval_every=2,
        steps=8,
    ),
    "PLM": PLM.replace(**OF_VIEWS, cached_views=8),
    "clusters": CROPS.replace(
        algorithm="pseudo_labels", algorithm_options={"labels": "kmeans", "clusters": 5}, cached_views=2
    ),
}


def cut(spec):
    manifest = batches.load_dataset(spec)
    network = inference.build_network(spec, manifest)
    inference.perturb(network, spec)
    tail, stored = activations.cut(spec, network, manifest)
    return network, tail, batches.Task(spec, manifest, stored)


def images_of(spec, indices):
    return batches.test_images(spec, batches.load_dataset(spec), indices)


@pytest.mark.parametrize("block", ["block2", "block3", "head"])
def test_a_tail_trains_as_the_whole_network_with_its_lower_blocks_frozen(block, monkeypatch):
    """Step by step: losses, weights and scores; glyphs have one view. BatchNorm learns above the cut, not below."""
    spec = TAIL.replace(train_from=block)
    tail = loop.train(spec)
    build, lower = inference.build_network, {"block2": 4, "block3": 8, "head": 16}[block]

    def frozen_below(*args):
        network = build(*args)
        for module in network.trunk[:lower].eval().requires_grad_(False).modules():
            module.train = lambda mode=True, module=module: module
        return network

    monkeypatch.setattr(inference, "build_network", frozen_below)
    whole = loop.train(spec.replace(train_from=None))
    assert torch.allclose(tail.losses, whole.losses, rtol=1e-4)
    assert set(tail.states["network"]) < set(whole.states["network"])
    for name, value in tail.states["network"].items():
        assert torch.allclose(value, whole.states["network"][name], rtol=1e-3, atol=1e-5), name
    assert torch.allclose(tail.embeddings[""], whole.embeddings[""], rtol=1e-3, atol=1e-4)
    started = build(spec, batches.load_dataset(spec)).state_dict()
    assert not torch.equal(tail.states["network"]["head.weight"], started["head.weight"])
    lowest = f"trunk.{lower}.weight" if block != "head" else "head.bias"
    assert not torch.equal(tail.states["network"][lowest], started[lowest])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_train_tails_and_resume_them(name, tmp_path):
    spec = ALGORITHMS[name]
    whole = loop.train(spec)
    assert len(whole.losses) and "trunk.8.weight" in whole.states["network"]
    assert not any(key.startswith("trunk.4") for state in whole.states.values() for key in state)
    if "teacher" in whole.states:
        assert whole.states["teacher"].keys() == whole.states["network"].keys()
    again = resumed(spec, tmp_path / "run.pt", step=3)
    assert again.rows == whole.rows and torch.equal(again.losses, whole.losses)


def test_the_centre_and_its_mirror_image_are_shown_and_the_centre_is_evaluated():
    network, tail, task = cut(CROPS.replace(cached_views=2))
    centre = images_of(CROPS, task.train)
    with torch.no_grad():
        of_views = [entering(network, tail, view) for view in (centre, centre.flip(-1))]
    picked = torch.arange(40)
    batch = task.as_trained(picked, "augmentation", 0)
    near = torch.stack([(batch - view[:40]).flatten(1).norm(dim=1) for view in of_views]) < 1e-3
    assert (near.sum(0) == 1).all() and 5 < near[0].sum() < 35
    assert torch.equal(task.as_trained(picked, "augmentation", 0), batch)
    assert not torch.equal(task.as_trained(picked, "augmentation", 1), batch)
    evaluated = torch.cat(list(task.test_batches(task.test)))
    assert torch.allclose(evaluated, entering(network, tail, images_of(CROPS, task.test)), atol=1e-5)


def entering(network, tail, images):
    with torch.no_grad():
        return backbones.entering(network.eval(), tail.first, images)


def test_an_image_is_shown_in_different_crops_and_in_every_view_before_one_comes_again():
    spec = CROPS.replace(views=2, cached_views=8)
    *_, task = cut(spec)
    for step, picked in task.index_batches(0, 3):
        batch = task.as_trained(picked, "augmentation", step)
        first, second = batch.split(spec.batch_size)
        assert (first - second).flatten(1).norm(dim=1).min() > 1e-3
    centre = torch.cat(list(task.test_batches(task.train[picked[:16].numpy()])))
    assert (batch[:16] - centre).flatten(1).norm(dim=1).min() > 1e-3
    views = [torch.full((3, 1), float(number)) for number in range(4)]
    stored = Activations(torch.full((6, 1), -1.0), views, np.array([1, 3, 5]), shows_centre=False)
    generator = torch.Generator().manual_seed(0)
    shown = stored.trained(np.array([3, 1, 3, 3, 1, 3, 3]), generator).flatten()
    assert sorted(shown[[0, 2, 3, 5]].tolist()) == [0, 1, 2, 3] and shown[1] != shown[4]
    assert shown[6] == shown[0]


def test_views_do_not_depend_on_the_seed_so_that_seeds_share_them(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path))
    weights = tmp_path / "weights.pth"
    torch.save(inference.build_network(TINY, batches.load_dataset(TINY)).trunk.state_dict(), weights)
    spec = CROPS.replace(weights=str(weights), cached_views=8)

    def kept(**changes):
        cut(spec.replace(**changes))
        return len(list((tmp_path / "activations").glob("*/array.npy")))

    assert kept() == 9  # eight crops and the centre
    assert kept(seed=1, lr=1.0, loss="baselines.triplet", label_noise=0.2) == 9
    assert kept(cached_views=2) == 10  # the mirror image; the centre is there
    assert kept(cached_views=2, train_from="block2") == 12
    assert kept(cached_views=2, image_size=28) == 14
    assert kept(cached_views=2, replica=1) == 16
    torch.save(inference.build_network(TINY.replace(seed=5), batches.load_dataset(TINY)).trunk.state_dict(), weights)
    assert kept(cached_views=2) == 18
    monkeypatch.setattr(activations.sources, "bytes_hash", lambda roots: "another network of the same name")
    assert kept(cached_views=2) == 20
