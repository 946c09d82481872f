"""Machines that have trained nothing yet."""

import os
from pathlib import Path

import pytest
from tiny import TINY

from experiments.datasets import manifests


@pytest.fixture
def machine(tmp_path, monkeypatch, shared_cache):
    """A function that gives a machine with an empty cache, but for rendered images; the first is there already."""
    manifests._drawn.cache_clear()  # a process keeps what an earlier test may have rendered elsewhere
    manifests.load(TINY.dataset, images_per_class=TINY.images_per_class)

    def anew():
        cache = tmp_path / f"machine{len(list(tmp_path.glob('machine*')))}"
        cache.mkdir()
        for path in shared_cache.iterdir():
            if path.name not in ("runs", "checkpoints", "derived", "embeddings", "locks"):
                (cache / path.name).symlink_to(path)
        monkeypatch.setenv("DMLREPRO_CACHE", str(cache))

    anew()
    return anew


@pytest.fixture
def empty_cache(machine) -> Path:
    """The cache of such a machine."""
    return Path(os.environ["DMLREPRO_CACHE"])
