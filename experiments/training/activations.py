"""What enters the tail of a network: the activations below it, computed once per image and view, and kept.

A run with `train_from` trains a network from a block on. What lies below never changes, so it is computed beforehand,
in evaluation mode (BatchNorm too) and in float32: of every image the test-time crop, of training images also the other
views in which they are shown. There is one array per view in cache_root()/activations, under all that it depends on and
mapped into memory; runs, seeds and processes share them. Whoever removes that folder loses only time.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.datasets import images, manifests
from experiments.files import cache_root, mapped_array
from experiments.networks import backbones
from experiments.training import batches, sources
from experiments.training.device import device_for_training
from experiments.training.seeds import derive_seed
from experiments.training.spec import RunSpec

EVALUATED_AT_ONCE = 2**19  # numbers; at least 256 images


class Activations:
    """The activations of a data set's images, which are known by their numbers in its manifest: `centre` (N, ...) of
    the test-time crop of every image, maps as (N, H, W, C), and `further`, the other views of the T images of `train`,
    each (T, ...). shows_centre: whether the centre is a view that is trained on, too."""

    def __init__(self, centre: Tensor, further: list[Tensor], train: np.ndarray, *, shows_centre: bool):
        self.centre, self.views = centre, [centre] * shows_centre + further
        place = np.full(len(centre), -1)
        place[train] = np.arange(len(train))
        self.rows_of = [np.arange(len(centre))] * shows_centre + [place] * len(further)

    def evaluated(self, indices: np.ndarray) -> Iterator[Tensor]:
        """The centres of images, in chunks."""
        chunk = max(256, EVALUATED_AT_ONCE // self.centre[0].numel())
        for start in range(0, len(indices), chunk):
            yield _maps(self.centre[torch.from_numpy(indices[start : start + chunk])])

    def trained(self, indices: np.ndarray, generator: torch.Generator) -> Tensor:
        """A batch of training images, each in a view drawn for it. What is there several times is shown in different
        views, until all have been."""
        if len(self.views) == 1:
            return _maps(self.views[0][torch.from_numpy(self.rows_of[0][indices])])
        unique, image = np.unique(indices, return_inverse=True)
        order = torch.rand(len(unique), len(self.views), generator=generator).argsort(1).numpy()
        turns = np.tril(image[:, None] == image, -1).sum(1)  # how often each has occurred before
        view = order[image, turns % len(self.views)]
        batch = self.centre.new_empty(len(indices), *self.centre.shape[1:])
        for number, (stored, row) in enumerate(zip(self.views, self.rows_of)):
            (mine,) = np.nonzero(view == number)
            batch[torch.from_numpy(mine)] = stored[torch.from_numpy(row[indices[mine]])]
        return _maps(batch)


def _maps(stored: Tensor) -> Tensor:
    """(B, H, W, C) becomes (B, C, H, W) in the layout that convolutions want."""
    return stored.permute(0, 3, 1, 2) if stored.ndim == 4 else stored


def cut(
    spec: RunSpec, network: backbones.EmbeddingNet, manifest: manifests.Manifest
) -> tuple[backbones.Tail, Activations]:
    """The part of a network that a run trains, and what enters it, from the cache or computed now. ValueError: it
    cannot be cut at `train_from`."""
    everything, train = np.arange(len(manifest.labels)), manifest.indices("train")
    probe = next(_shown(spec, manifest, "centre", everything[:2])).to(device_for_training())
    tail = backbones.Tail(network.to(probe.device), spec.backbone, spec.train_from or "")
    network.eval()
    number = spec.cached_views or 1
    views = {1: [], 2: ["mirrored"]}.get(number, [f"crop {crop}" for crop in range(number)])

    @torch.no_grad()
    def enter(shown: Tensor) -> Tensor:
        """What enters the tail, as it is stored: maps as (B, H, W, C)."""
        entering = backbones.entering(network, tail.first, shown.to(probe.device))
        return (entering.permute(0, 2, 3, 1) if entering.ndim == 4 else entering).contiguous()

    shape = enter(probe).shape[1:]
    # all that activations depend on, but for the view
    decides: list[Any] = [manifest.name, manifest.images_digest, train.tobytes(), tail.first]
    decides += [spec.backbone, backbones.weights_digest(spec.backbone, spec.weights), spec.pooling]
    decides += [spec.image_size, spec.test_resize, spec.original_images]
    decides += [probe.device.type, sources.versions(), sources.bytes_hash(sources.IMAGES)]
    decides += [spec.seed, spec.replica] if spec.replica or not spec.weights else []

    def array(view: str, indices: np.ndarray) -> Tensor:
        parts = (enter(batch).cpu().numpy() for batch in _shown(spec, manifest, view, indices))
        key = [*decides, view, spec.crop_scale if view.startswith("crop") else ""]
        place, kind = cache_root() / "activations", np.dtype(np.float32)
        stored = mapped_array(place, key, (len(indices), *shape), kind, lambda: parts)
        with warnings.catch_warnings():  # that it is not writable is what we want
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(stored)

    further = [array(view, train) for view in views]
    return tail, Activations(array("centre", everything), further, train, shows_centre=number <= 2)


def _shown(spec: RunSpec, manifest: manifests.Manifest, view: str, indices: np.ndarray) -> Iterator[Tensor]:
    """Batches (b, C, H, W) uint8 of images in a view, which no seed decides: runs differ by what they show when."""
    store = images.open_images(manifest, short_side=batches.stored_side(spec))
    if not view.startswith("crop"):
        for batch in batches.test_batches(spec, store, indices):
            yield batch.flip(-1) if view == "mirrored" else batch
        return
    numbers, size = torch.from_numpy(indices), spec.image_size or 0
    for start in range(0, len(indices), 256):  # the crops of all are drawn each time, and some of them made
        generator = torch.Generator().manual_seed(derive_seed(0, view))
        rows = slice(start, start + 256)
        yield images.train_batch(store, numbers, size, generator, scale=spec.crop_scale, rows=rows)
