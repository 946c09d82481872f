"""Two ranks equal one: value, gradients of the network and of the proxies, for every loss of the package."""

import importlib
import inspect
import multiprocessing
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dmlrepro import losses
from dmlrepro.losses import baselines, nivmf
from experiments.networks import backbones

sys.path.append(str(Path(__file__).parents[2] / "examples"))
import two_ranks

RANKS, BATCH, CLASSES, DIM = 2, 9, 5, 8  # an odd batch: the ranks hold 4 and 5 images


def every_loss() -> dict:
    """{name: builder} of all that is called as builder(num_classes, embedding_size), and the joint loss."""
    builders = {}
    for path in sorted(Path(losses.__path__[0]).glob("*.py")):
        module = importlib.import_module(f"dmlrepro.losses.{path.stem}")
        for name, item in vars(module).items():
            if name.startswith("_") or getattr(item, "__module__", None) != module.__name__ or not callable(item):
                continue
            taken = inspect.signature(item).parameters.values()
            required = [p.name for p in taken if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
            if required == ["num_classes", "embedding_size"]:
                builders[f"{path.stem}.{name}"] = item
    for distance in nivmf.DEFAULTS:
        builders[f"nivmf {distance}"] = lambda c, d, distance=distance: nivmf.ProbabilisticProxyLoss(c, d, distance)
    builders["nivmf joint"] = lambda c, d: nivmf.JointProxyLoss(
        nivmf.ProbabilisticProxyLoss(c, d), baselines.proxy_anchor(c, d).loss, omega=0.3
    )
    return builders


def gradients(build, penalty: float = 0.0) -> dict[str, torch.Tensor]:
    """Loss, and gradients of network and loss, at the second of two calls: samplers have moved on by then."""
    torch.manual_seed(0)
    loss = build(CLASSES, DIM).double()
    network = backbones.freeze_batchnorm(backbones.build("conv4", DIM, in_channels=1, seed=1).double()).train()
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
        if penalty:  # a term of the weights themselves, which no gathering of embeddings scales
            value = value + penalty * sum(parameter.square().sum() for parameter in network.parameters())
        if value.requires_grad:
            value.backward()
    named = [("network", network), ("loss", loss)]
    grads = {f"{part} {name}": p.grad for part, module in named for name, p in module.named_parameters()}
    return {"value": value.detach()} | {name: grad.clone() for name, grad in grads.items() if grad is not None}


def _rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=RANKS)
    computed = {name: gradients(build) for name, build in every_loss().items()}
    computed["penalised"] = gradients(baselines.proxy_nca_pp, penalty=3.0)
    torch.save(computed, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_rank, args=(rank, folder)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
        assert process.exitcode == 0
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.parametrize("name", [*every_loss(), "penalised"])
def test_two_ranks_have_the_loss_and_the_gradients_of_one(name, ranks):
    one = gradients(every_loss()[name]) if name != "penalised" else gradients(baselines.proxy_nca_pp, penalty=3.0)
    assert any(key.startswith("network trunk") and grad.abs().max() > 0 for key, grad in one.items())
    for two in ranks:
        assert two[name].keys() == one.keys()
        for key, expected in one.items():
            scale = max(expected.abs().max().item(), 1e-30)
            assert (two[name][key] - expected).abs().max().item() < 1e-11 * scale, key


def test_every_loss_of_the_three_kinds_is_among_them():
    names = set(every_loss())
    assert {"potential_field.PotentialFieldLoss", "potential_field.ContrastivePotentialLoss"} <= names
    assert {"nivmf.ProbabilisticProxyLoss", "nivmf el_nivmf", "nivmf joint"} <= names
    assert {f"baselines.{loss}" for loss in ("proxy_anchor", "soft_triple", "margin", "multi_similarity")} <= names
