"""Two ranks equal one: value, gradients of the network and of the proxies, for every loss of the package."""

import contextlib
import importlib
import inspect
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dmlrepro import losses
from dmlrepro.losses import baselines, nivmf
from experiments.datasets import images
from experiments.datasets.manifests import load
from experiments.networks import backbones
from experiments.training import distributed, keys, loop, runs, scheduling
from experiments.training.spec import RunSpec

RANKS, BATCH, CLASSES, DIM = 2, 9, 5, 8  # an odd batch: the ranks hold 4 and 5 images
NOBODYS = {"what": {}, "where": {}}  # the identity of a run that is never stored


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
    replica = distributed.parallel(network)
    generator = torch.Generator().manual_seed(2)
    batch = torch.randint(256, (2, BATCH, 1, 16, 16), generator=generator, dtype=torch.uint8)
    labels = torch.arange(BATCH) // 2
    for whole in batch:
        network.zero_grad()
        loss.zero_grad()
        value = loss(distributed.gather(replica(whole[distributed.share(BATCH)]), BATCH), labels)
        if penalty:  # a term of the weights themselves, which no gathering of embeddings scales
            value = value + penalty * sum(parameter.square().sum() for parameter in network.parameters())
        if value.requires_grad:
            value.backward()
        distributed.average_gradients(loss)
    named = [("network", network), ("loss", loss)]
    grads = {f"{part} {name}": p.grad for part, module in named for name, p in module.named_parameters()}
    return {"value": value.detach()} | {name: grad.clone() for name, grad in grads.items() if grad is not None}


def _rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=RANKS)
    computed = {name: gradients(build) for name, build in every_loss().items()}
    computed["penalised"] = gradients(baselines.proxy_nca_pp, penalty=3.0)
    try:
        distributed.synchronised_batchnorm(backbones.build("conv4", DIM), torch.device("cpu"))
    except ValueError as error:
        computed["batchnorm"] = str(error)
    computed["from first"] = distributed.from_first(lambda: rank + 7)
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


def test_the_first_rank_decides(ranks):
    assert [rank["from first"] for rank in ranks] == [7, 7]


def test_batchnorm_of_a_slice_is_refused(ranks):
    assert all("freeze_batchnorm=False on several ranks needs GPUs" in rank["batchnorm"] for rank in ranks)


def test_a_part_of_a_batch_is_cut_as_in_the_whole():
    store = images.open_images(load("glyphs", images_per_class=2))

    def batch(rows):
        return images.train_batch(store, np.arange(9), 24, torch.Generator().manual_seed(0), rows=rows)

    whole = batch(slice(None))
    assert torch.equal(torch.cat([batch(slice(0, 4)), batch(slice(4, 9))]), whole)


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="a single GPU takes one rank")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"views": 2, "neighbours": 5},
        {"scheme": "momentum", "scheme_options": {"momentum": 0.5, "consistency": 100.0}},
        {
            "views": 2,
            "neighbours": 5,
            "loss": "piecewise_linear.PiecewiseLinearManifoldLoss",
            "scheme": "momentum_encoder",
            "scheme_options": {"momentum": 0.5},
        },
    ],
    ids=["shuffled", "stml", "teacher", "plm"],
)
def test_a_run_on_two_ranks_is_kept_and_equals_one_on_one(changes, tmp_path, monkeypatch, shared_cache):
    spec = RunSpec(
        dataset="glyphs",
        images_per_class=4,
        image_size=32,
        embedding_size=8,
        steps=4,
        eval_every=2,
        warmup_epochs=0.04,  # the trunk joins at the third step
        batch_size=15,
        lr=1e-3,
        threads=1,
        freeze_batchnorm=True,
        **{"loss": "potential_field.PotentialFieldLoss"} | changes,
    )
    one = loop.train(spec)
    monkeypatch.setenv("DMLREPRO_RANKS", "2")
    two = runs.run(spec)
    assert not two.from_cache and two.key != keys.key_of(spec.replace(freeze_batchnorm=False))
    assert torch.allclose(two.losses, one.losses, rtol=1e-5)
    assert torch.allclose(two.embeddings, one.embeddings[""], rtol=1e-3, atol=1e-5)
    assert two.arrays.keys() >= {f"losses {name}" for name in one.terms}
    for name in one.states.keys() - {"loss"}:
        trained = two.network(name).state_dict()
        assert trained.keys() == one.states[name].keys()
        assert all(torch.allclose(trained[key], value, rtol=1e-3, atol=1e-5) for key, value in one.states[name].items())
    assert runs.run(spec).from_cache
    monkeypatch.delenv("DMLREPRO_RANKS")
    assert keys.key_of(spec) != two.key


@pytest.mark.parametrize("value", ["0", "two", "-1"])
def test_a_wrong_number_of_ranks_is_named(value, monkeypatch):
    monkeypatch.setenv("DMLREPRO_RANKS", value)
    with pytest.raises(ValueError, match="DMLREPRO_RANKS must be a positive number"):
        distributed.ranks_for("cpu")


def test_a_failing_rank_is_reported_with_its_error(monkeypatch):
    spec = RunSpec(dataset="no such set", steps=1)
    with pytest.raises(RuntimeError, match="unknown data set 'no such set'"):
        distributed.launch(NOBODYS, spec.as_dict(), 1)


def test_a_run_that_diverges_on_several_ranks_says_so_as_on_one(shared_cache):
    spec = RunSpec(
        "glyphs", images_per_class=4, loss="baselines.proxy_nca_pp", steps=9, batch_size=8, lr=1e30, threads=1
    )
    with pytest.raises(FloatingPointError) as on_one:
        loop.train(spec)
    with pytest.raises(FloatingPointError) as on_two:
        distributed.launch(NOBODYS, spec.replace(freeze_batchnorm=True).as_dict(), 2)
    assert str(on_two.value).startswith("training diverged before step")
    assert str(on_one.value).startswith("training diverged before step")


def test_synchronised_batchnorm_keeps_the_activation_that_timm_puts_into_it(monkeypatch):
    from timm.layers import BatchNormAct2d

    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    network = torch.nn.Sequential(BatchNormAct2d(3), torch.nn.BatchNorm2d(3))
    network = distributed.synchronised_batchnorm(network, torch.device("cuda"))
    assert all(isinstance(norm, torch.nn.SyncBatchNorm) for norm in network)
    assert isinstance(network[0].act, torch.nn.ReLU)


def _launch(folder: str, identity: dict, spec: RunSpec) -> None:
    os.environ["DMLREPRO_CACHE"] = folder
    distributed.launch(identity, spec.as_dict(), 1)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for the processes in /proc")
def test_no_rank_outlives_a_killed_notebook(shared_cache):
    spec = RunSpec("glyphs", images_per_class=4, loss="baselines.proxy_nca_pp", steps=10**6, batch_size=8, threads=1)
    identity = {"what": {"killed": os.getpid()}, "where": {}}
    notebook = multiprocessing.get_context("spawn").Process(target=_launch, args=(str(shared_cache), identity, spec))
    notebook.start()
    ranks = wait_for(lambda: processes_with("experiments.training.worker", json.dumps(identity)), 60)
    assert ranks
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.join()
    assert wait_for(lambda: not processes_with("experiments.training.worker", json.dumps(identity)), 60)


def processes_with(*words: str) -> list[str]:
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_text().split("\0")
            if all(word in command for word in words) and "torch.distributed.run" not in command:
                pids.append(path.parent.name)
    return pids


def wait_for(condition, seconds: float):
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return met


def test_a_gpu_too_small_for_one_of_several_ranks_is_one_line(monkeypatch):
    process = mock.MagicMock(returncode=1)
    process.__enter__.return_value = process
    summary = (
        "Root Cause (first observed failure):\n  File ...\ntorch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB.\n"
    )
    process.communicate.return_value = (None, summary)
    monkeypatch.setattr(distributed.subprocess, "Popen", lambda *_, **__: process)
    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory\. Tried 2 GiB\.$"):
        distributed.launch("key", {}, 2)
    monkeypatch.setattr(keys, "ranks_of", lambda spec: 2)
    with pytest.raises(MemoryError, match=r"^out of GPU memory \(CUDA out of memory\); lower batch_size"):
        scheduling.train_into_cache(keys.identity_of(RunSpec("glyphs")), RunSpec("glyphs"))
