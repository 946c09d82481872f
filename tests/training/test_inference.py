"""What a network makes of images: embeddings, the features of a frozen trunk, and their scores."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import TINY

from dmlrepro import retrieval
from experiments.training import batches, inference, loop
from experiments.training.spec import RunSpec


def test_images_and_heads_that_do_not_fit_are_refused():
    spec = RunSpec(
        "glyphs", image_size=227, backbone="vit_small_patch16_224.dino", loss="baselines.proxy_anchor", steps=1
    )
    with pytest.raises(ValueError, match=r"image_size 227: vit_small_patch16_224.dino takes 224 pixels only"):
        loop.train(spec)
    with pytest.raises(ValueError, match="head_start='pca': embedding_size must be at most 128, got 300"):
        loop.prepare(TINY.replace(head_start="pca", embedding_size=300), torch.device("cpu"))


def test_embeddings_that_are_not_finite_have_no_scores(monkeypatch):
    monkeypatch.setattr(inference, "embed", lambda network, images, **how: torch.tensor([[1.0], [float("nan")]]))
    task = SimpleNamespace(test_batches=lambda indices: [], validation=(), test=np.arange(2), spec=TINY)
    with pytest.raises(FloatingPointError, match="not finite; lower lr or loss_lr"):
        inference.evaluate(task, {"": torch.nn.Linear(1, 1)}, 0)


def test_an_image_that_could_find_itself_is_refused():
    query, gallery = np.array([1, 0, 1, 0], bool), np.array([0, 1, 0, 1], bool)
    manifest = SimpleNamespace(labels=np.array([0, 0, 1, 1]), is_query=query, is_gallery=gallery)
    points, labels, searched = inference.searching(torch.eye(4), manifest, np.arange(4))
    assert retrieval.retrieval(points, labels, (1,), **searched)["R@1"] == 0.5  # equal distances: the first of them
    manifest.is_query = ~gallery | gallery
    with pytest.raises(ValueError, match="equal or disjoint"):
        inference.searching(torch.eye(4), manifest, np.arange(4))


@pytest.mark.parametrize("kind", ["pca", "whitened"])
def test_a_head_may_start_at_principal_components(kind):
    """Distances between embeddings are those between numpy's principal components, up to one scale."""
    spec = TINY.replace(loss=None, steps=None, weights="symbols", head_start=kind, train_from="head")
    task, network = loop.prepare(spec, torch.device("cpu"))
    features = torch.cat(list(task.test_batches(task.train))).double().numpy()
    centred = features - features.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    components = left[:, :8] if kind == "whitened" else left[:, :8] * values[:8]
    embeddings = inference.embed(network, task.test_batches(task.train)).double()
    distances, expected = (torch.pdist(torch.as_tensor(points)) for points in (embeddings, components))
    torch.testing.assert_close(distances / distances.mean(), expected / expected.mean(), rtol=1e-3, atol=1e-3)
    assert embeddings.mean(0).abs().max() < 1e-4 * embeddings.abs().max()
    drawn = loop.prepare(spec.replace(head_start=None), torch.device("cpu"))[1].head.weight
    assert network.head.weight.std().item() == pytest.approx(drawn.std().item(), rel=1e-3)


def test_batchnorm_begins_with_the_mean_statistics_of_the_first_batches():
    manifest = batches.load_dataset(TINY)
    task, network, entering = batches.Task(TINY, manifest), inference.build_network(TINY, manifest), []
    first = next(module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d))
    hook = first.register_forward_hook(lambda _, inputs, __: entering.append(inputs[0].detach().mean((0, 2, 3))))
    for images, _ in task.train_batches(0, inference.CALIBRATED, torch.device("cpu")):
        network(images)
    hook.remove()
    inference.calibrate_batchnorm(task, network)
    torch.testing.assert_close(first.running_mean, torch.stack(entering).mean(0))
    frozen = loop.prepare(TINY.replace(freeze_batchnorm=True), torch.device("cpu"))
    inference.calibrate_batchnorm(*frozen)
    assert all(not module.running_mean.any() for module in frozen[1].modules() if isinstance(module, type(first)))
