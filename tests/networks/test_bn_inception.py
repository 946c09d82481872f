"""BN-Inception against the published facts: size, names, shapes, and its file with all its habits."""

import re

import pytest
import torch
import torch.nn.functional as F

from experiments.networks.backbones import build
from experiments.networks.bn_inception import MODULES, URL, BNInception


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BNInception().eval()
        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d):  # so that the output depends on the input and not on the biases
                torch.nn.init.kaiming_normal_(module.weight)
            if isinstance(module, torch.nn.BatchNorm2d):
                torch.nn.init.normal_(module.running_mean, std=0.1)
                torch.nn.init.uniform_(module.weight, 0.8, 1.2)
        model.conv1.get_submodule("7x7_s2_bn").running_var.fill_(70.0**2)  # about the standard deviation of pixels
        return model


def test_size_widths_and_sides_that_it_can_halve(model):
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_295_240 - 1_025_000  # the classifier
    assert sum(isinstance(module, torch.nn.Conv2d) for module in model.modules()) == 69
    norm = model.inception_4c.get_submodule("3x3_bn")
    assert (norm.eps, norm.momentum) == (1e-5, 0.9)
    widths = [model.get_submodule(f"inception_{name}").out for name in MODULES]
    assert widths == [256, 320, 576, 576, 576, 608, 608, 1056, 1024, 1024]  # as in the published definition
    assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 1024, 7, 7)
    for side in (112, 144, 300):
        with pytest.raises(ValueError, match=f"images of {side} x {side} pixels.*multiples of 32"):
            model(torch.zeros(1, 3, side, side))


@pytest.mark.parametrize(("name", "width"), [("3a", 192), ("4e", 608), ("5b", 1024)])
def test_a_module_equals_its_branches_written_out(model, name, width):
    """One module of each kind: plain, halving, and 5b with its max-pooling."""
    module, stride = model.get_submodule(f"inception_{name}"), 2 if name == "4e" else 1

    def layers(x, *names):
        for layer in names:
            conv, bn = module.get_submodule(layer), module.get_submodule(f"{layer}_bn")
            last = layer in ("3x3", "double_3x3_2")
            x = F.conv2d(x, conv.weight, conv.bias, stride if last else 1, padding=conv.kernel_size[0] // 2)
            x = F.batch_norm(x, bn.running_mean, bn.running_var, bn.weight, bn.bias, training=False, eps=1e-5)
            x = x.clamp(min=0)
        return x

    x = torch.randn(1, width, 8, 8, generator=torch.Generator().manual_seed(1))
    branches = [layers(x, "3x3_reduce", "3x3"), layers(x, "double_3x3_reduce", "double_3x3_1", "double_3x3_2")]
    if name == "4e":
        branches.append(F.max_pool2d(x, 3, 2, ceil_mode=True))
    else:
        pool = F.avg_pool2d if name == "3a" else F.max_pool2d
        branches = [layers(x, "1x1"), *branches, layers(pool(x, 3, 1, 1), "pool_proj")]
    torch.testing.assert_close(module(x), torch.cat(branches, 1), rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def published(model, tmp_path_factory):
    """A file as old as the published one: its names of layers, BatchNorm vectors as (1, n), no batch counters, and a
    classifier."""
    state = {re.sub(r"^(conv\d|inception_\d\w)\.", r"\1_", key): value for key, value in model.state_dict().items()}
    assert {"conv2_3x3_reduce.weight", "inception_3a_1x1.bias", "inception_4e_double_3x3_2_bn.weight"} <= state.keys()
    state = {key: value[None] if "_bn." in key else value for key, value in state.items() if "num_batches" not in key}
    path = tmp_path_factory.mktemp("data") / "weights" / URL.rsplit("/", 1)[1]
    path.parent.mkdir()
    torch.save(state | {"last_linear.weight": torch.zeros(1000, 1024), "last_linear.bias": torch.zeros(1000)}, path)
    return path


def test_the_published_file_loads_and_its_input_is_bgr_from_0_to_255(model, published, monkeypatch):
    monkeypatch.setenv("DMLREPRO_DATA", str(published.parent.parent))
    net = build("bn_inception", None, weights="imagenet").eval()
    assert published.name == "bn_inception-52deb4733.pth" and net.num_features == 1024
    images = torch.randint(0, 256, (1, 3, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        blue_first = torch.stack([images[:, 2] - 104.0, images[:, 1] - 117.0, images[:, 0] - 128.0], dim=1)
        expected = model(blue_first).mean((2, 3))
        torch.testing.assert_close(net(images), expected, rtol=1e-4, atol=1e-4)
        assert (net(images.flip(1)) - expected).abs().max() > 0.01 * expected.abs().max()
