"""Which images form a step: the folds of the training classes."""

import numpy as np
import pytest

from dmlrepro.datasets import manifests
from dmlrepro.training import batches


def test_folds_are_contiguous_and_class_disjoint():
    manifest = manifests.load("glyphs", images_per_class=1)
    pairs = batches.folds(manifest)
    np.testing.assert_array_equal(np.concatenate([held_out for _, held_out in pairs]), np.arange(200))
    for train, held_out in pairs:
        assert len(held_out) == 50 and (np.diff(held_out) == 1).all()
        np.testing.assert_array_equal(np.sort(np.concatenate([train, held_out])), np.arange(200))
    with pytest.raises(ValueError, match="k must be between 2 and"):
        batches.folds(manifest, 1)
