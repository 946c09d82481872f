"""Two ranks equal one: value, gradients of the network and of the proxies, for every loss, and the metric."""

import multiprocessing
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from each_loss import LABELLED, D, built
from torch.nn.parallel import DistributedDataParallel

from dmlrepro import metrics
from dmlrepro.losses.nivmf import DEFAULTS
from experiments.networks import backbones

sys.path.append(str(Path(__file__).parents[2] / "examples"))
import two_ranks

BATCH = 9  # an odd batch: the ranks hold 4 and 5 images
LOSSES = {name: lambda name=name: built(name) for name in LABELLED}
LOSSES |= {f"NivMF {which}": lambda which=which: built("NivMF", distance=which) for which in DEFAULTS}
PENALISED = {"penalised": lambda: built("ProxyNCAPP")}  # with a term of the weights, that no gathering scales


def gradients(name: str) -> dict[str, torch.Tensor]:
    """Loss, and gradients of network and loss, at the second of two calls: samplers have moved on by then."""
    loss = (LOSSES | PENALISED)[name]().double()
    network = backbones.freeze_batchnorm(backbones.build("conv4", D, in_channels=1, seed=1).double()).train()
    ranks = dist.is_initialized()
    replica = DistributedDataParallel(network) if ranks else network
    criterion = DistributedDataParallel(loss) if ranks and next(loss.parameters(), None) is not None else loss
    generator = torch.Generator().manual_seed(2)
    batch = torch.randint(256, (2, BATCH, 1, 16, 16), generator=generator, dtype=torch.uint8)
    labels = torch.arange(BATCH) // 2
    for whole in batch:
        network.zero_grad()
        loss.zero_grad()
        value = criterion(two_ranks.gather(replica(whole[two_ranks.share(BATCH)]), BATCH), labels)
        if name in PENALISED:
            value = value + 3.0 * sum(parameter.square().sum() for parameter in network.parameters())
        if value.requires_grad:
            value.backward()
    named = [("network", network), ("loss", loss)]
    grads = {f"{part} {name}": p.grad for part, module in named for name, p in module.named_parameters()}
    return {"value": value.detach()} | {name: grad.clone() for name, grad in grads.items() if grad is not None}


IMAGES = torch.randn(41, 3, generator=torch.Generator().manual_seed(0)), torch.arange(41) % 7


def measures(rank: int) -> list[dict]:
    """The metric of a part, as DistributedSampler hands it out; then of names, with nothing at one rank."""
    embeddings, labels = IMAGES
    mine = torch.tensor([*range(41), 0])[rank::2]  # 42 places for 41 images
    metric = metrics.RetrievalMetric()
    for rows in mine.split(7):
        metric.update(embeddings[rows], labels[rows], rows)
    computed = [metric.compute()]
    metric.reset()
    if rank == 1:
        metric.update(embeddings, [str(label) for label in labels.tolist()])
    return [*computed, metric.compute()]


def _rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    options = {"world_size": 2, "timeout": timedelta(seconds=300)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, **options)
    found = {name: gradients(name) for name in LOSSES | PENALISED}
    torch.save(found | {"measures": measures(rank)}, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    other = multiprocessing.get_context("spawn").Process(target=_rank, args=(1, folder))
    other.start()
    _rank(0, folder)
    other.join(600)
    assert other.exitcode == 0
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", LOSSES | PENALISED)
def test_two_ranks_have_the_loss_and_the_gradients_of_one(name, ranks):
    one = gradients(name)
    assert any(key.startswith("network trunk") and grad.abs().max() > 0 for key, grad in one.items())
    for two in ranks:
        assert two[name].keys() == one.keys()
        for key, expected in one.items():
            scale = max(expected.abs().max().item(), 1e-5)  # the gradient of a shift is rounding alone in some
            assert (two[name][key] - expected).abs().max().item() < 1e-11 * scale, key


def test_two_ranks_compute_the_measures_of_one(ranks):
    assert [each["measures"] for each in ranks] == 2 * [2 * [metrics.retrieval(*IMAGES)]]
