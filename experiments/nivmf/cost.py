"""Notebook 26: what Monte-Carlo samples cost, and what they are good for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from dmlrepro import metrics
from dmlrepro.losses.nivmf import ProbabilisticProxyLoss
from dmlrepro.retrieval import MEASURES
from experiments import timing
from experiments.methods import pick, runs_of
from experiments.nivmf.methods import DISTANCES, EMBEDDING_SCALE, METHODS, NivmfOptions, nivmf_ablation
from experiments.params import Count, parameters
from experiments.studies import scored, study_rows, trained_loss
from experiments.training import batches, inference, records
from experiments.training.builders import loss_builder
from experiments.training.device import device_for_training
from experiments.training.records import measurement
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec

# of the timed network and losses, as in notebook 17; Cars-196 has so many classes for training
BACKBONE, EMBEDDING_SIZE, CLASSES = "resnet50", 512, 98
TIMED_DISTANCES = ("EL-vMF", "B-vMF", "KL-vMF")  # analytic ones


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
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(params.batch_size, EMBEDDING_SIZE, generator=generator)
    labels = torch.randint(CLASSES, (params.batch_size,), generator=generator)
    # (method, setting) -> an untrained loss, with concentrations as in the released runs of ResNet-50
    proxy_nca: Any = loss_builder(METHODS["ProxyNCA++"].loss or "")
    losses = {("ProxyNCA++", ""): proxy_nca(CLASSES, EMBEDDING_SIZE)}
    forms: dict[tuple[str, str], dict] = {(name, ""): {"distance": DISTANCES[name]} for name in TIMED_DISTANCES}
    forms |= {("EL-nivMF", f"samples={count}"): {"num_samples": count} for count in params.sample_counts}
    scale = EMBEDDING_SCALE["resnet50.tv_in1k"]
    for key, form in forms.items():
        losses[key] = ProbabilisticProxyLoss(CLASSES, EMBEDDING_SIZE, embedding_scale=scale, seed=0, **form)
    with timing.threads(params.threads):
        images = (params.network_images, params.cost_image_size, device)
        network, batch = timing.network_and_images(BACKBONE, "none", EMBEDDING_SIZE, *images)

        @torch.no_grad()
        def retrieve() -> None:
            """Embed some images and rank a gallery by cosine: the same for every method that trained a network."""
            queries = network.eval()(batch)
            points = torch.cat([queries, embeddings[len(queries) :].to(queries)])
            metrics.retrieval(points, labels.to(queries.device), measures=MEASURES)

        parts = {key: timing.LossStep(loss, embeddings.clone(), labels, device) for key, loss in losses.items()}
        costs = timing.steps(parts, network, batch, params.batch_size, params.repetitions)
        both = dict.fromkeys(("ProxyNCA++", "EL-nivMF"), retrieve)
        retrieving = timing.in_turn(both, params.repetitions, device.type, rounds=timing.ROUNDS)
    values = timing.over(costs.sum(axis=1).to_frame("seconds_ratio"), "ProxyNCA++", lambda setting: "")
    ratio = pd.concat({("EL-nivMF", ""): retrieving["EL-nivMF"] / retrieving["ProxyNCA++"]}, names=timing.RUN)
    values = pd.concat([values.drop("ProxyNCA++", level="method"), ratio.to_frame("retrieval_seconds_ratio")])
    return timing.rows(params, values, BACKBONE, EMBEDDING_SIZE)


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
        repetitions=Count,  # how often each time is measured, all methods in turn
    ),
    cost_and_samples,
    profiles={
        "*": {"sample_counts": (1, 2, 5, 10, 20), "cost_image_size": 224, "network_images": 20, "repetitions": 6},
        "quick": {"cost_image_size": 112, "network_images": 5, "sample_counts": (1, 5, 20), "repetitions": 2},
        "paper": {"network_images": 100},
    },
    references={"sample_counts": ("samples",)},
    measures=spreads_of,
    ratios=ratios,
)
