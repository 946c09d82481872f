"""Batches against torchvision's own transforms on the decoded files; the decode-once cache."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import official_layouts as layouts
import pytest
import torch
import torchvision.transforms.v2.functional as reference
from PIL import Image
from torchvision.transforms import v2

from experiments.datasets import images, manifests


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Twelve pictures of 20..22 x 24 pixels in the CUB layout."""
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path))
    layouts.write_cub(tmp_path, {1: 4, 2: 4, 101: 4})
    return manifests.load("cub-subset")


@pytest.fixture
def glyphs():
    return manifests.load("glyphs", images_per_class=3)


def decoded(path):
    return reference.pil_to_tensor(Image.open(path).convert("RGB"))


def test_arrays_stay_what_they_are_and_plain_batches_are_the_images(glyphs, files):
    store = images.open_images(glyphs)
    assert len(store.sizes) == len(glyphs) and store.channels == 1
    np.testing.assert_array_equal(store[7][0], glyphs.images[7])
    colour = replace(glyphs, images=np.stack([glyphs.images, glyphs.images // 2, 255 - glyphs.images], -1))
    np.testing.assert_array_equal(images.open_images(colour)[7][2], 255 - glyphs.images[7])
    batch = images.plain_batch(images.open_images(glyphs), torch.tensor([4, 0]))
    np.testing.assert_array_equal(batch[:, 0], glyphs.images[[4, 0]])
    with pytest.raises(ValueError, match="plain_batch needs a set whose images have one size"):
        images.plain_batch(images.open_images(files), torch.tensor([0]))


def test_files_are_decoded_once_to_their_pixels_or_resized_to_the_short_side(files, monkeypatch):
    store, small = images.open_images(files), images.open_images(files, short_side=16)
    assert store.image_size is None
    for index, path in enumerate(files.images):
        assert torch.equal(store[index], decoded(path))
        assert torch.equal(small[index], reference.pil_to_tensor(reference.resize(Image.open(path), 16)))
    noisy = replace(files, labels=files.labels[::-1].copy())  # labels do not matter for pixels
    monkeypatch.setattr(images, "decoded", None)
    for manifest in (files, noisy):
        again = images.open_images(manifest, short_side=16)
        assert torch.equal(again.pixels, small.pixels)


def test_too_full_a_disk_is_told_before_decoding(files, tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(images.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(OSError, match="point DMLREPRO_CACHE to a larger disk"):
        images.open_images(files)
    assert not list((tmp_path / "cache" / "images").glob("[!.]*"))


def test_training_crops_are_torchvision_resized_crops_and_half_are_mirrored(files):
    store, indices = images.open_images(files), torch.arange(1000) % 12
    batch = images.train_batch(store, indices, 16, torch.Generator().manual_seed(0))
    assert batch.shape == (1000, 3, 16, 16) and batch.dtype == torch.uint8
    boxes = images.random_boxes(store.sizes[indices], torch.Generator().manual_seed(0), (0.16, 1.0), (3 / 4, 4 / 3))
    pictures, mirrored = [decoded(path) for path in files.images], 0
    for crop, index, box in zip(batch, indices.tolist(), boxes.tolist()):
        straight = reference.resized_crop(pictures[index], *box, [16, 16], antialias=True)
        turned = not torch.equal(crop, straight)
        assert not turned or torch.equal(crop, straight.flip(-1))
        mirrored += turned
    assert 440 < mirrored < 560


@pytest.mark.parametrize("size", [(40, 60), (60, 40), (50, 200)])
def test_boxes_are_distributed_as_torchvision_draws_them(size):
    count = 4000
    torch.manual_seed(0)  # torchvision draws from the global generator
    theirs = v2.RandomResizedCrop(8, scale=(0.2, 0.9), ratio=(0.5, 1.5))
    blank = torch.empty(1, *size)
    drawn = [theirs.make_params([blank]) for _ in range(count)]
    expected = np.array([[params[key] for key in ("top", "left", "height", "width")] for params in drawn], float)
    sizes = torch.tensor([size]).expand(count, 2)
    boxes = images.random_boxes(sizes, torch.Generator().manual_seed(0), (0.2, 0.9), (0.5, 1.5)).numpy()
    assert (boxes[:, 0] + boxes[:, 2] <= size[0]).all() and (boxes[:, 1] + boxes[:, 3] <= size[1]).all()
    error = expected.std(0) / count**0.5
    np.testing.assert_array_less(np.abs(boxes.mean(0) - expected.mean(0)), 5 * error * 2**0.5)
    for quantile in (0.1, 0.5, 0.9):
        np.testing.assert_allclose(
            np.quantile(boxes, quantile, 0), np.quantile(expected, quantile, 0), atol=0.05 * max(size)
        )


def test_impossible_crops_fall_back_to_the_centre():
    boxes = images.random_boxes(torch.tensor([[10, 1000]]), torch.Generator(), (0.9, 1.0), (3 / 4, 4 / 3))
    assert boxes.tolist() == [[0, 493, 10, 13]]  # as torchvision: full height, width height * 4/3, centred


def test_test_crops_are_torchvision_centre_crops(files):
    store = images.open_images(files)
    batch = images.test_batch(store, [2, 7], 14, resize=17)
    for crop, index in zip(batch, (2, 7)):
        whole = reference.resize(decoded(files.images[index]), 17, antialias=True)
        assert torch.equal(crop, reference.center_crop(whole, [14, 14]))
    unscaled = images.test_batch(store, [2], 18)[0]
    assert torch.equal(unscaled, reference.center_crop(decoded(files.images[2]), [18, 18]))
    enlarged = images.test_batch(store, [2], 30)[0]
    assert torch.equal(enlarged, reference.center_crop(reference.resize(decoded(files.images[2]), 30), [30, 30]))


def test_a_part_of_a_batch_is_cut_as_in_the_whole():
    store = images.open_images(manifests.load("glyphs", images_per_class=2))

    def batch(rows):
        return images.train_batch(store, np.arange(9), 24, torch.Generator().manual_seed(0), rows=rows)

    whole = batch(slice(None))
    assert torch.equal(torch.cat([batch(slice(0, 4)), batch(slice(4, 9))]), whole)
