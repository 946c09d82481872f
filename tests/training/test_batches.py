"""Which images form a step: the folds of the training classes, crops, and batches prepared ahead."""

import time
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import official_layouts
import pytest
import torch
from tiny import TINY

from experiments.training import batches
from experiments.training.spec import RunSpec


def test_folds_are_contiguous_and_class_disjoint():
    for classes, bounds in ((100, (0, 25, 50, 75, 100)), (98, (0, 25, 50, 74, 98))):
        manifest = SimpleNamespace(num_train_classes=classes)
        for (train, held_out), (low, high) in zip(batches.folds(manifest), pairwise(bounds), strict=True):
            assert held_out.tolist() == list(range(low, high))
            assert sorted([*train, *held_out]) == list(range(classes))
    with pytest.raises(ValueError, match="k must be between 2 and"):
        batches.folds(manifest, 1)


def test_views_are_different_crops_of_the_same_images():
    spec = TINY.replace(image_size=24, views=2)
    task = _task(spec)
    batch, labels = next(task.train_batches(0, 1, torch.device("cpu")))
    assert batch.shape == (32, 1, 24, 24) and torch.equal(*labels.split(16))
    (_, once), (_, twice) = next(_task(TINY).index_batches(0, 1)), next(task.index_batches(0, 1))
    assert torch.equal(once.repeat(2), twice)
    assert not any(torch.equal(a, b) for a, b in zip(*batch.split(16)))


def _task(spec: RunSpec) -> batches.Task:
    return batches.Task(spec, batches.load_dataset(spec))


def test_batches_made_ahead_come_in_order():
    delays = np.random.default_rng(0).random(12) / 100

    def make(i):
        time.sleep(delays[i])
        return i

    assert list(batches.prefetched(make, ((i,) for i in range(12)), crops=True)) == list(range(12))


def test_crops_come_from_the_files_where_the_originals_are_asked_for(tmp_path, monkeypatch):
    official_layouts.write_cub(tmp_path, {1: 3, 101: 3})  # images of 20 to 22 pixels
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path))
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path / "cache"))
    spec = TINY.replace(dataset="cub-subset", images_per_class=None, image_size=8, test_resize=10, batch_size=2)
    sides = {}
    for original in (False, True):
        task = batches.Task(spec.replace(original_images=original), batches.load_dataset(spec))
        sides[original] = set(task.store.sizes.amin(1).tolist())
        (batch,) = task.test_batches(task.test)
        assert batch.shape == (3, 3, 8, 8)
    assert sides == {False: {10}, True: {20, 21, 22}}
