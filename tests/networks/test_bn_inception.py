"""BN-Inception against the published facts: size, names, shapes, and its file with all its habits."""

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
        model.conv1_7x7_s2_bn.running_var.fill_(70.0**2)  # about the standard deviation of pixels
        return model


def test_size_and_layer_names(model):
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_295_240
    layers = {key.rsplit(".", 1)[0] for key in model.state_dict()}
    convolutions = {layer for layer in layers if layer + "_bn" in layers}
    assert len(convolutions) == 69  # 3 in the stem, 8 modules of 7 and 2 of 5
    assert layers == convolutions | {layer + "_bn" for layer in convolutions} | {"last_linear"}
    some = "conv1_7x7_s2 conv2_3x3_reduce conv2_3x3 inception_3a_1x1 inception_3a_pool_proj inception_3c_3x3 "
    some += "inception_4e_double_3x3_2 inception_5b_double_3x3_reduce inception_5b_pool_proj"
    assert convolutions >= set(some.split())
    assert not {"inception_3c_1x1", "inception_3c_pool_proj", "inception_4e_1x1", "inception_4e_pool_proj"} & layers
    assert model.conv1_7x7_s2.bias is not None
    assert (model.conv1_7x7_s2_bn.eps, model.conv1_7x7_s2_bn.momentum) == (1e-5, 0.9)


def test_shapes_through_the_network(model):
    """Output widths of the stem and the modules as in the published definition, at 224 pixels."""
    seen = {}
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(lambda _, x, name=name: seen.update({name: x[0].shape[1:]}))
        for name in [f"inception_{module}_3x3_reduce" for module in MODULES]
    ]
    with torch.inference_mode():
        out = model(torch.zeros(1, 3, 224, 224))
    for hook in hooks:
        hook.remove()
    inputs = [
        (192, 28),
        (256, 28),
        (320, 28),
        (576, 14),
        (576, 14),
        (576, 14),
        (608, 14),
        (608, 14),
        (1056, 7),
        (1024, 7),
    ]
    assert [tuple(shape) for shape in seen.values()] == [(width, side, side) for width, side in inputs]
    assert out.shape == (1, 1024, 7, 7)


@pytest.mark.parametrize(("module", "width"), [("3a", 192), ("4e", 608), ("5b", 1024)])
def test_a_module_equals_its_branches_written_out(model, module, width):
    """The last step of the forward, one module of each kind: plain, halving, and 5b with its max-pooling."""

    def layer(x, name, stride=1):
        conv, bn = (
            model.get_submodule(f"inception_{module}_{name}"),
            model.get_submodule(f"inception_{module}_{name}_bn"),
        )
        x = F.conv2d(x, conv.weight, conv.bias, stride, padding=conv.kernel_size[0] // 2)
        x = F.batch_norm(x, bn.running_mean, bn.running_var, bn.weight, bn.bias, training=False, eps=1e-5)
        return x.clamp(min=0)

    captured = {}
    following = {"3a": "inception_3b_3x3_reduce", "4e": "inception_5a_3x3_reduce"}.get(module)
    hooks = [
        model.get_submodule(f"inception_{module}_3x3_reduce").register_forward_pre_hook(
            lambda _, x: captured.update(before=x[0])
        )
    ]
    if following:
        hooks.append(model.get_submodule(following).register_forward_pre_hook(lambda _, x: captured.update(after=x[0])))
    with torch.inference_mode():
        out = model(torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(1)) * 50)
        x, after = captured["before"], captured.get("after", out)
        assert x.shape[1] == width
        stride = 2 if module == "4e" else 1
        branches = [
            layer(layer(x, "3x3_reduce"), "3x3", stride),
            layer(layer(layer(x, "double_3x3_reduce"), "double_3x3_1"), "double_3x3_2", stride),
        ]
        if module == "4e":
            branches.append(F.max_pool2d(x, 3, 2, ceil_mode=True))
        else:
            pool = F.avg_pool2d if module == "3a" else F.max_pool2d
            branches = [layer(x, "1x1"), *branches, layer(pool(x, 3, 1, 1), "pool_proj")]
        torch.testing.assert_close(after, torch.cat(branches, 1), rtol=1e-4, atol=1e-4)
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("side", [112, 144, 300])
def test_sides_the_network_cannot_halve_are_named(model, side):
    with pytest.raises(ValueError, match=f"images of {side} x {side} pixels.*multiples of 32"):
        model(torch.zeros(1, 3, side, side))


@pytest.fixture(scope="module")
def published(model, tmp_path_factory):
    """A file as old as the published one: BatchNorm vectors as (1, n), no batch counters."""
    state = {key: value for key, value in model.state_dict().items() if "num_batches_tracked" not in key}
    state = {key: value[None] if "_bn." in key else value for key, value in state.items()}
    path = tmp_path_factory.mktemp("data") / "weights" / URL.rsplit("/", 1)[1]
    path.parent.mkdir()
    torch.save(state, path)
    return path


def test_the_published_file_loads_from_the_data_folder(model, published, monkeypatch):
    monkeypatch.setenv("DMLREPRO_DATA", str(published.parent.parent))
    net = build("bn_inception", None, weights="imagenet").eval()
    assert published.name == "bn_inception-52deb4733.pth"
    assert net.num_features == 1024
    for key, value in net.trunk.state_dict().items():
        assert torch.equal(value, model.state_dict()[key])
    assert not any("last_linear" in key for key in net.state_dict())


def test_input_is_bgr_from_0_to_255(model, published):
    net = build("bn_inception", None, weights=published).eval()
    images = torch.randint(0, 256, (1, 3, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        blue_first = torch.stack([images[:, 2] - 104.0, images[:, 1] - 117.0, images[:, 0] - 128.0], dim=1)
        expected = model(blue_first).mean((2, 3))
        torch.testing.assert_close(net(images), expected, rtol=1e-4, atol=1e-4)
        assert (net(images.flip(1)) - expected).abs().max() > 0.05 * expected.abs().max()


def test_a_file_of_another_network_is_refused(tmp_path):
    torch.save({"features.0.weight": torch.zeros(1)}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"other\.pth does not fit BNInception: \d+ missing \(conv1_7x7_s2\.weight"):
        build("bn_inception", 8, weights=tmp_path / "other.pth")
