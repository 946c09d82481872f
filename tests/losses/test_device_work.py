"""A training step asks little of a GPU: operations and waits of each loss, forward and backward, may not grow.

Every operation that torch dispatches counts, views included. The host waits where a shape or a branch depends on
values: it reads a number or a list, or takes the rows of a mask.
"""

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dmlrepro.losses import baselines, close_pairs, mean_field, nivmf, potential_field

CLASSES, DIM, BATCH = 100, 64, 100
READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount", "repeat_interleave"}
READS |= {"_unique2", "unique_dim", "unique_consecutive"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
COPIES = {"tolist", "cpu", "numpy"}  # methods that on a CPU dispatch nothing


class Operations(TorchDispatchMode):
    operations = waits = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        masked = name in INDEXING and any(isinstance(i, Tensor) and i.dtype == torch.bool for i in args[1])
        self.operations += 1
        self.waits += masked or name in READS
        return func(*args, **(kwargs or {}))


class Copies(TorchFunctionMode):
    waits = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.waits += getattr(func, "__name__", "") in COPIES
        return func(*args, **(kwargs or {}))


def step(loss):
    """(operations, waits) of a step."""
    torch.manual_seed(1)
    embeddings = torch.randn(BATCH, DIM, requires_grad=True)
    labels = torch.arange(BATCH) // 4 % CLASSES
    loss(embeddings, labels).backward()  # what is computed once per process is none of a step's
    with Copies() as copies, Operations() as dispatched:
        loss(embeddings, labels).backward()
    return dispatched.operations, dispatched.waits + copies.waits


@pytest.mark.parametrize(
    ("loss", "operations", "waits"),
    [
        (lambda: baselines.proxy_anchor(CLASSES, DIM), 160, 6),
        (lambda: baselines.proxy_nca_pp(CLASSES, DIM), 75, 2),
        (lambda: baselines.soft_triple(CLASSES, DIM), 180, 1),
        (lambda: potential_field.PotentialFieldLoss(CLASSES, DIM, 2), 280, 15),
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


@pytest.mark.parametrize(("gigabytes", "tile"), [(80, 8192), (40, 8192), (24, 4096), (2, 2048), (0.5, 1024)])
def test_tiles_are_sized_for_the_device(monkeypatch, gigabytes, tile):
    device = type("", (), {"total_memory": gigabytes * 2**30})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda which: device)
    assert close_pairs._sizes(torch.device("cuda"))[0] == tile
    assert 8 * tile**2 <= gigabytes * 2**30 / 64  # a temporary in float64; a dense tile has about eight
