"""A training step asks little of a GPU: operations and waits of each loss, forward and backward, may not grow."""

import pytest
import torch
import torch.nn.functional as F
from device_work import counted

from dmlrepro.losses import baselines, close_pairs, mean_field, nivmf, potential_field

CLASSES, DIM, BATCH = 100, 64, 100


def step(loss):
    torch.manual_seed(1)
    embeddings = torch.randn(BATCH, DIM, requires_grad=True)
    labels = torch.arange(BATCH) // 4 % CLASSES

    def call():
        loss(embeddings, labels).backward()

    call()  # what is computed once per process is none of a step's
    return counted(call)


@pytest.mark.parametrize(
    ("loss", "operations", "waits"),
    [
        (lambda: baselines.proxy_anchor(CLASSES, DIM), 160, 6),
        (lambda: baselines.proxy_nca_pp(CLASSES, DIM), 70, 1),
        (lambda: baselines.soft_triple(CLASSES, DIM), 180, 1),
        (lambda: nivmf.ProbabilisticProxyLoss(CLASSES, DIM, "cosine"), 95, 1),
        (lambda: nivmf.ProbabilisticProxyLoss(CLASSES, DIM, "nivmf"), 310, 3),
        (lambda: nivmf.ProbabilisticProxyLoss(CLASSES, DIM, "el_vmf"), 490, 1),
        (lambda: nivmf.ProbabilisticProxyLoss(CLASSES, DIM, "kl"), 610, 1),
        (lambda: nivmf.ProbabilisticProxyLoss(CLASSES, DIM, "el_nivmf", embedding_scale=1.0, seed=0), 620, 9),
        (lambda: nivmf.proxy_anchor_with_nivmf(CLASSES, DIM, embedding_scale=1.0, seed=0), 770, 13),  # ten on the host
        (lambda: mean_field.MeanFieldContrastiveLoss(CLASSES, DIM), 100, 2),
        (lambda: mean_field.MeanFieldClassWiseMultiSimilarityLoss(CLASSES, DIM), 200, 3),
        (lambda: mean_field.MeanFieldNCALoss(CLASSES, DIM), 120, 3),
        (lambda: mean_field.ClassBalancedContrastiveLoss(CLASSES, DIM), 80, 2),
        (lambda: mean_field.ClassWiseMultiSimilarityLoss(CLASSES, DIM), 190, 2),
    ],
)
def test_operations_and_waits_of_a_step(loss, operations, waits):
    counts = step(loss())
    assert counts[0] <= operations and counts[1] <= waits, counts


def tiles_of_a_gpu(monkeypatch, gigabytes, scale=1):
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: type("", (), {"total_memory": gigabytes * 2**30})
    )
    tile, chunk = close_pairs._sizes(torch.device("cuda"))
    monkeypatch.setattr(close_pairs, "_sizes", lambda device: (tile // scale, chunk))
    return tile


@pytest.mark.parametrize(("gigabytes", "tile"), [(80, 8192), (40, 8192), (24, 4096), (2, 2048), (0.5, 1024)])
def test_tiles_are_sized_for_the_device(monkeypatch, gigabytes, tile):
    assert tiles_of_a_gpu(monkeypatch, gigabytes) == tile
    assert 8 * tile**2 <= gigabytes * 2**30 / 64  # a temporary in float64; a dense tile has about eight


@pytest.mark.parametrize(
    ("clusters", "operations", "waits"),
    [(0, 316, 20), (200, 550, 28), (20, 550, 28), (1, 785, 64)],  # none, a few, more, all pairs of points close
)
def test_a_step_of_pfml_on_sop(monkeypatch, clusters, operations, waits):
    """11,318 classes of two proxies, an eighth of them in tiles an eighth as large: as many tiles as all have."""
    scale = 8
    tiles_of_a_gpu(monkeypatch, 80, scale)
    torch.manual_seed(0)
    loss = potential_field.PotentialFieldLoss(11318 // scale, DIM, 2)
    if clusters:
        centers = F.normalize(torch.randn(clusters, DIM), dim=1)
        proxies = loss.proxies.data.flatten(0, 1)
        proxies *= 0.2 * (0.1 + 0.9 * torch.rand(len(proxies), 1)) / DIM**0.5
        proxies += centers[torch.randint(clusters, (len(proxies),))]
    counts = step(loss)
    assert counts[0] <= operations and counts[1] <= waits, counts


def test_only_the_search_takes_tf32():
    """The setting holds within the block, on a GPU alone, and never refines what the reader chose."""
    for device, before, within in (
        ("cpu", "highest", "highest"),
        ("cuda", "highest", "high"),
        ("cuda", "medium", "medium"),
    ):
        torch.set_float32_matmul_precision(before)
        try:
            with pytest.raises(KeyError), close_pairs._tf32(torch.device(device)):
                assert torch.get_float32_matmul_precision() == within
                raise KeyError
            assert torch.get_float32_matmul_precision() == before
        finally:
            torch.set_float32_matmul_precision("highest")
