"""Which images form a step: the parts of a data set that a run trains, validates and tests on, and their batches."""

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dmlrepro import samplers
from experiments.datasets import images, manifests
from experiments.training.seeds import derive_seed
from experiments.training.spec import RunSpec


def load_dataset(spec: RunSpec) -> manifests.Manifest:
    """The manifest of a spec; label noise is drawn from the spec's seed."""
    return manifests.load(
        spec.dataset, label_noise=spec.label_noise, seed=spec.seed, images_per_class=spec.images_per_class
    )


def test_images(spec: RunSpec, manifest: manifests.Manifest, indices: np.ndarray | list[int]) -> Tensor:
    """The given images of a dataset as a network sees them at test time, uint8 (len(indices), C, H, W)."""
    store = images.open_images(manifest, short_side=stored_side(spec))
    return torch.cat(list(test_batches(spec, store, np.asarray(indices))))


def folds(manifest: manifests.Manifest, k: int = 4) -> list[tuple[np.ndarray, np.ndarray]]:
    """Cross-validation over classes: k pairs (training class ids, validation class ids).

    The validation classes of the folds are k contiguous, disjoint runs of the training classes (Musgrave et al. 2020).
    """
    classes = np.arange(manifest.num_train_classes)
    if not 2 <= k <= len(classes):
        raise ValueError(f"k must be between 2 and the {len(classes)} training classes, got {k}")
    return [(np.setdiff1d(classes, held_out), held_out) for held_out in np.array_split(classes, k)]


class Task:
    """The images of a spec: which are trained on, validated on and tested on, and how a batch is made of them.

    activations: those of activations.py, which stand for the images where a network is trained from a block on.
    """

    def __init__(self, spec: RunSpec, manifest: manifests.Manifest, activations: Any = None):
        self.spec = spec
        self.manifest = manifest
        self.activations = activations
        self.test = manifest.indices("test")
        train = manifest.indices("train")
        self.validation = train[:0]
        labels = manifest.labels
        if spec.fold is not None:
            kept, held_out = folds(manifest, spec.folds)[spec.fold]
            self.validation = train[np.isin(labels[train], held_out)]
            train = train[np.isin(labels[train], kept)]
        self.train = train
        self.train_labels = np.unique(labels[train], return_inverse=True)[1]
        self.num_classes = int(self.train_labels.max()) + 1
        if spec.loss is not None and spec.batch_size > len(train):
            raise ValueError(
                f"batch_size {spec.batch_size} is larger than the {len(train)} training images of {manifest.name}"
            )
        self.steps_per_epoch = max(len(train) // spec.batch_size, 1)
        self.store: Any = None if activations else images.open_images(manifest, short_side=stored_side(spec))
        self.crops = activations is None and spec.image_size is not None  # whether random crops are made in training

    def index_batches(self, first: int, end: int, neighbours: Tensor | None = None) -> Iterator[tuple[int, Tensor]]:
        """Yield (step, which of the train images) for steps first..end-1; with `neighbours` they lie in one epoch."""
        size, per_class, start, seed = self.spec.batch_size, self.spec.samples_per_class, 0, (self.spec.seed, "sampler")
        if neighbours is not None:
            start = first - first % self.steps_per_epoch
            seed = (*seed, start // self.steps_per_epoch)
        count, generator = end - start, torch.Generator().manual_seed(derive_seed(*seed))
        if neighbours is not None:
            drawn = samplers.neighbour_groups(neighbours, size, count, generator)
        elif per_class is not None:
            drawn = samplers.m_per_class(self.train_labels, size, per_class, count, generator)
        else:
            drawn = samplers.shuffled(len(self.train), size, count, generator)
        for step, picked in enumerate(drawn, start):
            if step >= first:
                yield step, picked.repeat(self.spec.views)

    def train_batches(
        self, first: int, end: int, device: torch.device, neighbours: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (images, labels) on the device for steps first..end-1."""
        labels = torch.from_numpy(self.train_labels)

        def make(step: int, picked: Tensor) -> tuple[Tensor, Tensor]:
            return self.as_trained(picked, "augmentation", step), _pinned(labels[picked])

        steps = self.index_batches(first, end, neighbours)
        for batch, target in prefetched(make, steps, crops=self.crops):
            yield batch.to(device, non_blocking=True), target.to(device, non_blocking=True)

    def as_trained(self, picked: Tensor, *stream: object) -> Tensor:
        """The train images number `picked` as a step sees them; `stream` names the crops."""
        indices = self.train[picked.numpy()]
        generator = torch.Generator().manual_seed(derive_seed(self.spec.seed, *stream))
        if self.activations is not None:
            return _pinned(self.activations.trained(indices, generator))
        if self.spec.image_size is None:
            return _pinned(images.plain_batch(self.store, indices))
        batch = images.train_batch(self.store, indices, self.spec.image_size, generator, scale=self.spec.crop_scale)
        return _pinned(batch)

    def test_batches(self, indices: np.ndarray) -> Iterator[Tensor]:
        if self.activations is not None:
            return self.activations.evaluated(indices)
        return test_batches(self.spec, self.store, indices)


def stored_side(spec: RunSpec) -> int | None:
    """Short side of the decoded copies that a run reads, in pixels; None: the images at their own size."""
    if spec.image_size is None or spec.original_images:
        return None
    return max(spec.test_resize or spec.image_size, spec.image_size)


def test_batches(spec: RunSpec, store: images.ImageStore, indices: np.ndarray, size: int = 256) -> Iterator[Tensor]:
    def make(chunk: np.ndarray) -> Tensor:
        if spec.image_size is None:
            return _pinned(images.plain_batch(store, torch.from_numpy(chunk)))
        return _pinned(images.test_batch(store, torch.from_numpy(chunk), spec.image_size, resize=spec.test_resize))

    chunks = ((indices[start : start + size],) for start in range(0, len(indices), size))
    return prefetched(make, chunks, crops=spec.image_size is not None)


def _pinned(batch: Tensor) -> Tensor:
    """The batch in page-locked memory, from which a copy to the GPU does not stop the threads."""
    return batch.pin_memory() if torch.cuda.is_available() else batch


def prefetched(make: Callable, arguments: Iterator[tuple], *, crops: bool) -> Iterator:
    """Yield make(*arguments) in order. Threads make batches that need cropping, a few ahead of the consumer."""
    if not crops:  # such a batch is one indexing operation, which costs less than handing the interpreter lock over
        while chunk := list(itertools.islice(arguments, 64)):  # a sampler stays in the CPU's caches when drawn in a row
            yield from (make(*item) for item in chunk)
        return
    # a process that has one thread shares its cores with others
    workers = min(8, len(os.sched_getaffinity(0)), 2 * torch.get_num_threads()) if torch.cuda.is_available() else 1
    with ThreadPoolExecutor(workers) as pool:
        pending: deque = deque()
        for item in arguments:
            pending.append(pool.submit(make, *item))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
