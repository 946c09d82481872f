"""Notebook 24: how images are degraded, and what is read off the norms."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F

from experiments import studies
from experiments.nivmf import certainty
from experiments.training import batches
from experiments.training.spec import RunSpec


@pytest.fixture
def batch():
    return torch.randint(0, 256, (5, 3, 24, 24), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize("kind", ["crop", "occlusion", "blur"])
def test_degrading_by_nothing_changes_nothing_and_is_repeatable(kind, batch):
    assert torch.equal(certainty.Degrade(kind, 0.0)(batch), batch)
    once, twice = (certainty.Degrade(kind, 0.6, seed=3)(batch) for _ in range(2))
    assert once.dtype == torch.uint8 and once.shape == batch.shape
    assert torch.equal(once, twice) and not torch.equal(once, batch)


def test_occlusion_covers_its_share_and_stronger_covers_more_of_the_same(batch):
    covered = [(certainty.Degrade("occlusion", s)(batch) != batch).any(1) for s in (0.2, 0.5, 0.8)]
    for share, mask in zip((0.2, 0.5, 0.8), covered):
        assert mask.double().mean().item() == pytest.approx(share, abs=0.06)
    assert (covered[0] <= covered[1]).all() and (covered[1] <= covered[2]).all()


def test_a_crop_shows_its_share_of_the_image_and_blur_keeps_the_mean_and_lowers_the_contrast(batch):
    ramp = torch.arange(0, 200, 2, dtype=torch.uint8).expand(1, 1, 100, 100)
    shown = certainty.Degrade("crop", 0.75)(ramp)[0, 0].float()
    assert (shown[0, -1] - shown[0, 0]).item() == pytest.approx(0.5 * 198, abs=3)
    assert shown.std(0).max() == 0  # rows are alike, as in the image: x and y are not mixed up
    contrasts = [certainty.Degrade("blur", s)(batch).float().std().item() for s in (0.0, 0.2, 0.4, 0.8)]
    assert contrasts == sorted(contrasts, reverse=True)
    assert certainty.Degrade("blur", 0.4)(batch).float().mean() == pytest.approx(batch.float().mean(), abs=3)


@pytest.mark.parametrize("arguments, name", [(("noise", 0.5), "kind"), (("blur", 1.0), "strength")])
def test_unknown_corruptions_are_named(arguments, name):
    with pytest.raises(ValueError, match=name):
        certainty.Degrade(*arguments)


def test_rank_correlation_is_spearmans_and_auroc_within_classes_sees_differences_there_alone():
    norms, strengths = torch.rand(5, 7, generator=torch.Generator().manual_seed(0)), (0.0, 0.4, 0.2, 0.8, 0.6)
    expected = np.mean([scipy.stats.spearmanr(column, strengths).statistic for column in norms.T])
    assert certainty._rank_correlation(norms, strengths) == pytest.approx(expected)
    run = fake_run(lambda labels, noise: 1.0 + labels)
    labels = studies.evaluated_labels(run)[0].numpy()
    auroc = certainty._auroc(run, labels > np.median(labels))
    assert auroc["norm_auroc"] == 1 and auroc["norm_auroc_within_class"] == pytest.approx(0.5, abs=0.05)
    run = fake_run(lambda labels, noise: (1.0 + labels) * (1 + 0.01 * noise))
    auroc = certainty._auroc(run, run.noise.numpy() > 0.5)
    assert auroc["norm_auroc"] < 0.6 and auroc["norm_auroc_within_class"] > 0.85


def fake_run(norm_of):
    """A run whose test embeddings are random directions with norms that a function of labels and noise gives."""
    spec = RunSpec(dataset="glyphs", images_per_class=4, steps=1, method="EL-nivMF")
    manifest = batches.load_dataset(spec)
    labels = torch.from_numpy(manifest.labels[manifest.indices("test")])
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(len(labels), generator=generator)
    directions = F.normalize(torch.randn(len(labels), 8, generator=generator), dim=1)
    return SimpleNamespace(spec=spec, embeddings=norm_of(labels, noise)[:, None] * directions, noise=noise)
