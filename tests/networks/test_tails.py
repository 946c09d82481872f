"""Tails: every network can be cut at its blocks."""

import copy

import pytest
import torch

from experiments.networks import backbones
from experiments.networks.backbones import Tail, blocks, build

# built like another one of the catalogue, of other size or weights
LIKE_OTHERS = ("resnet50", "vit_small_patch16_224.augreg_in21k", "vit_base_patch16_224.augreg_in21k")
NETWORKS = [pytest.param(name, marks=[pytest.mark.slow] * (name in LIKE_OTHERS)) for name in backbones.CATALOGUE]


def images_for(net):
    side = net.preprocess.crop or 32
    return torch.randint(256, (1, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_tail_makes_of_activations_what_the_network_makes_of_images(name):
    """At every block of every network: a run trains the tail alone and never compares it with the whole."""
    net = build(name, 4).eval()
    images = images_for(net)
    with torch.no_grad():
        whole = net(images)
        for block in blocks(name):
            tail = Tail(net, name, block).eval()
            activations = backbones.entering(net, tail.first, images)
            assert torch.allclose(tail(activations), whole, rtol=1e-4, atol=1e-5 * whole.abs().max()), block
            state = tail.state_dict()
            assert all(torch.equal(value, net.state_dict()[key]) for key, value in state.items())
            assert len(state) < len(net.state_dict()) or block == next(iter(blocks(name)))
    assert len(blocks(name)) > 4 and set(state) == {"head.weight", "head.bias"}


def test_the_patches_of_a_transformer_are_no_block():
    """Between the patches and the first block of a transformer lies the addition of positions, which is no module."""
    name = "vit_small_patch16_224.dino"
    with pytest.raises(ValueError, match=r"a block of vit_small_patch16_224.dino, blocks.0, .* got 'patch_embed'"):
        Tail(build(name, 4), name, "patch_embed")


def test_a_tail_keeps_frozen_batchnorm_frozen_also_in_copies():
    net = backbones.freeze_batchnorm(build("conv4", 4, in_channels=3))
    tail = Tail(net, "conv4", "block3")
    other = copy.deepcopy(tail)
    for network in (tail.train(), other.eval().train(), copy.deepcopy(net).eval().train()):
        norms = [module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)]
        assert norms and not any(norm.training for norm in norms) and network.trunk[0].training
    assert other.state_dict().keys() == tail.state_dict().keys()
    assert not any(mine is theirs for mine, theirs in zip(tail.parameters(), other.parameters()))
