"""What a network makes of images: embeddings, the features of a frozen trunk, and their scores."""

import numpy as np
import pytest
import torch
from tiny import TINY

from dmlrepro.training import batches, inference, loop
from dmlrepro.training.spec import RunSpec


def test_images_of_another_size_than_a_transformers_are_refused():
    spec = RunSpec(
        "glyphs", image_size=227, backbone="vit_small_patch16_224.dino", loss="baselines.proxy_anchor", steps=1
    )
    with pytest.raises(ValueError, match=r"image_size 227: vit_small_patch16_224.dino takes 224 pixels only"):
        loop.train(spec)


def test_test_images_are_what_the_network_is_evaluated_on():
    spec = RunSpec("glyphs", images_per_class=4, loss=None, image_size=24, test_resize=28, embedding_size=8)
    manifest = batches.load_dataset(spec)
    network = inference.build_network(spec, manifest).eval()
    pixels = batches.test_images(spec, manifest, range(300))
    assert pixels.shape == (300, 1, 24, 24) and pixels.dtype == torch.uint8
    with torch.no_grad():
        expected = torch.cat([network(part) for part in pixels.split(256)])
    assert torch.equal(inference.embed_images(spec, network, manifest, range(300)), expected)


def test_an_image_that_could_find_itself_is_refused():
    embeddings, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    query, gallery = np.array([1, 0, 1, 0], bool), np.array([0, 1, 0, 1], bool)
    assert inference.score(embeddings, labels, query, gallery, (1,))["R@1"] == 0.5  # equal distances: the first of them
    with pytest.raises(ValueError, match="equal or disjoint"):
        inference.score(embeddings, labels, query, ~gallery | gallery, (1,))


def test_a_frozen_trunk_trains_the_head_on_features_computed_once():
    spec = TINY.replace(train_from="head", steps=30)
    outcome = loop.train(spec)
    assert sorted(outcome.states["network"]) == ["head.bias", "head.weight"]
    again = loop.train(spec)  # on the features in the cache
    assert outcome.rows == again.rows
    assert outcome.losses[-5:].mean() < outcome.losses[:5].mean()
