"""Notebook 26: what Monte-Carlo samples cost, and what they are good for."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from dmlrepro import metrics
from dmlrepro.losses.nivmf import ProbabilisticProxyLoss
from dmlrepro.retrieval import MEASURES
from experiments import timing
from experiments.methods import pick, runs_of
from experiments.nivmf.claims import TESTS
from experiments.nivmf.methods import DISTANCES, EMBEDDING_SCALE, METHODS, NivmfOptions, nivmf_ablation
from experiments.params import Count, parameters
from experiments.studies import scored, study_rows, trained_loss
from experiments.training import batches, inference, records
from experiments.training.builders import loss_builder
from experiments.training.device import device_for_training
from experiments.training.records import measurement
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec

# what is timed, as in notebook 17: an untrained network, and losses of as many classes as Cars-196 has for training
BACKBONE, EMBEDDING_SIZE, CLASSES = "resnet50", 512, 98


def cost_and_samples(params: Any) -> list[RunSpec]:
    """EL-nivMF at every number of samples, at its default once more without that setting, and without D(K)."""
    el_nivmf = [METHODS["EL-nivMF"]]
    specs = runs_of(pick(METHODS, ["untrained", "EL-nivMF"]), params)
    for count in params.sample_counts:
        specs += runs_of(el_nivmf, params, setting=f"samples={count}", loss_options={"num_samples": count})
    return specs + runs_of(el_nivmf, params, setting="normalizer=none", loss_options={"jacobian": "none"})


def timed_ratios(params: Any) -> pd.DataFrame:
    """Times of a training step, see `experiments.timing`, and of retrieval over ProxyNCA++'s, a row per repetition. No
    two executions agree: the table is for the judge and the costs, not for the results."""
    device = device_for_training()
    with timing.threads(params.threads):
        images = (params.network_images, params.cost_image_size, device)
        network, batch = timing.network_and_images(BACKBONE, "none", EMBEDDING_SIZE, *images)
        share = params.network_images / params.batch_size
        parts = {key: timing.LossStep(loss, *_points(params), device) for key, loss in _losses(params).items()}
        seconds, rest = timing.steps(parts, timing.network_step(network, batch), share, params.repetitions, device)
        whole = {key: np.add(values, rest) for key, values in seconds.items()}
        calls = {name: _retriever(network, batch, *_points(params)) for name in ("ProxyNCA++", "EL-nivMF")}
        retrieving = timing.in_turn(calls, params.repetitions, device.type, rounds=timing.ROUNDS)
    base = whole.pop(("ProxyNCA++", ""))
    timed = {("seconds_ratio", *key): values / base for key, values in whole.items()}
    ratio = np.divide(retrieving["EL-nivMF"], retrieving["ProxyNCA++"])
    timed["retrieval_seconds_ratio", "EL-nivMF", ""] = ratio
    rows = [
        {"metric": metric, "method": method, "setting": setting, "seed": seed, "value": value}
        for (metric, method, setting), values in timed.items()
        for seed, value in enumerate(values)
    ]
    return study_rows(params, rows, backbone=BACKBONE, dim=EMBEDDING_SIZE)


def _losses(params: Any) -> dict[tuple[str, str], torch.nn.Module]:
    """(method, setting) -> an untrained loss: ProxyNCA++, the analytic distances, EL-nivMF by number of samples, with
    concentrations as in the released runs of ResNet-50."""
    size = (CLASSES, EMBEDDING_SIZE)
    options: dict[str, Any] = {"embedding_scale": EMBEDDING_SCALE["resnet50.tv_in1k"], "seed": 0}
    builder: Any = loss_builder(METHODS["ProxyNCA++"].loss or "")
    losses = {("ProxyNCA++", ""): builder(*size)}
    for name in ("EL-vMF", "B-vMF", "KL-vMF"):
        losses[name, ""] = ProbabilisticProxyLoss(*size, distance=DISTANCES[name], **options)
    for count in params.sample_counts:
        losses["EL-nivMF", f"samples={count}"] = ProbabilisticProxyLoss(*size, num_samples=count, **options)
    return losses


def _points(params: Any) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(params.batch_size, EMBEDDING_SIZE, generator=generator)
    return embeddings, torch.randint(CLASSES, (params.batch_size,), generator=generator)


def _retriever(
    network: torch.nn.Module, batch: torch.Tensor, gallery: torch.Tensor, labels: torch.Tensor
) -> Callable[[], None]:
    """Embedding some images and ranking a gallery by cosine: the same for every method that trained a network."""

    @torch.no_grad()
    def retrieve() -> None:
        queries = network.eval()(batch)
        embeddings = torch.cat([queries, gallery[len(queries) :].to(queries)])
        metrics.retrieval(embeddings, labels.to(queries.device), measures=MEASURES)

    return retrieve


TIMED = ["metric", "backbone", "method", "setting", "seed", "value"]  # columns among the costs of the runs


def ratios(costs: pd.DataFrame, params: Any) -> pd.DataFrame:
    """The timed ratios among saved costs, as `timed_ratios` gives them."""
    timed = costs[pd.to_numeric(costs["value"]).notna()]
    return study_rows(params, timed[TIMED].to_dict("records"), backbone=BACKBONE, dim=EMBEDDING_SIZE)


@measurement("nivmf.estimate_spread")
def estimate_spread(run: RunResult, counts: Sequence[int], draws: int = 40) -> list[dict[str, float]]:
    """Mean and standard deviation, over fresh draws, of a trained run's loss on one training batch, for each N."""
    manifest = batches.load_dataset(run.spec)
    picked = np.random.default_rng(run.spec.seed).choice(manifest.indices("train"), run.spec.batch_size, replace=False)
    labels = torch.from_numpy(manifest.labels[picked])
    embeddings = inference.embed_images(run.spec, run.network(), manifest, picked)
    found = []
    for count in counts:
        loss = trained_loss(run, manifest, embeddings.shape[1], num_samples=count)
        # a loss draws anew in training with gradients alone, see dmlrepro.losses._state
        values = torch.stack([loss(embeddings, labels).detach() for _ in range(draws)])
        found.append({"loss_mean": values.mean().item(), "loss_sd": values.std().item()})
    return found


def spreads_of(run: RunResult, params: Any) -> list:
    """The spread of the loss estimate of the default run for each N."""
    if run.spec.method != "EL-nivMF" or run.spec.setting:
        return []
    counts = list(params.sample_counts)
    spreads = zip(counts, records.derived([run], estimate_spread, counts=counts))
    return [scored(run, values, f"samples={count}") for count, values in spreads]


Cost = nivmf_ablation(
    "26_nivmf_cost_and_samples",
    parameters(
        NivmfOptions,
        sample_counts=tuple[Count, ...],
        cost_image_size=Count,
        network_images=Count,  # on which the network is measured
        repetitions=(Count, 6),  # how often each time is measured, all methods in turn
    ),
    cost_and_samples,
    profiles={
        "*": {"sample_counts": (1, 2, 5, 10, 20), "cost_image_size": 224, "network_images": 20},
        "quick": {"cost_image_size": 112, "network_images": 5, "sample_counts": (1, 5, 20)},
        "paper": {"network_images": 100},
    },
    references={"sample_counts": ("samples",)},
    measures=spreads_of,
    ratios=ratios,
    claims=TESTS,
)
