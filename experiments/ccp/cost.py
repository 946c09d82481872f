"""Notebook 46: what a step, see `experiments.timing`, costs with CCP beside the same loss within the batch (Sec. V-B,
Table I)."""

import itertools
from typing import Any

import pandas as pd
import torch

from dmlrepro.losses.chance_constrained import ProxyContrastiveLoss, greedy_k_center, projection_penalty
from experiments import timing
from experiments.ccp.claims import TESTS
from experiments.networks import backbones
from experiments.params import Count, Whole, parameters
from experiments.studies import study_rows
from experiments.study import Study
from experiments.training.algorithms.chance_constrained import GivenProxies
from experiments.training.device import device_for_training


def measure(params: Any) -> pd.DataFrame:
    """A row per method, setting (number of classes) and repetition (`seed`): seconds of the loss's part of a step,
    penalty_seconds, problem_seconds (pool and search over the steps of a problem), network_seconds of the rest."""
    device = device_for_training()
    with timing.threads(params.threads):
        some = (params.network_images, params.image_size, device)
        network, images = timing.network_and_images(params.backbone, params.weights, params.embedding_size, *some)
        moving = list(network.parameters())
        anchors = [parameter.detach().clone() for parameter in moving]

        def penalty() -> None:
            network.zero_grad(set_to_none=True)
            projection_penalty(moving, anchors, 2e-4).backward()

        calls = {("penalty", ""): penalty, ("forward", ""): torch.no_grad()(lambda: network(images))}
        for count in params.class_counts:
            calls |= _calls(count, params, device)
        costs = timing.steps(calls, network, images, params.batch_size, params.seeds)
    seconds, rows = costs["seconds"], []
    for seed, count in itertools.product(range(params.seeds), params.class_counts):
        setting = f"C={count}"
        pool = count * params.pool_size / params.network_images * seconds["forward", "", seed]
        once = (pool + seconds["search", setting, seed]) / params.problem_steps
        for method, more in {"C2": (0.0, 0.0), "C2-CCP-L": (seconds["penalty", "", seed], once)}.items():
            own, rest = costs.loc[method, setting, seed]
            rows.append((method, setting, seed, own, *more, rest))
    return pd.DataFrame(rows, columns=[*timing.RUN, "seconds", "penalty_seconds", "problem_seconds", "network_seconds"])


def _calls(count: int, params: Any, device: torch.device) -> dict:
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(params.batch_size, params.embedding_size, generator=generator)
    labels = torch.randint(count, (params.batch_size // 4,), generator=generator).repeat_interleave(4)
    given = GivenProxies(ProxyContrastiveLoss(), count, params.proxies_per_class, params.embedding_size)
    given.proxies.data.normal_(generator=generator)
    centers = given.proxies.detach().to(device)
    pool = torch.randn(count, params.pool_size, params.embedding_size, generator=generator).to(device)
    inside = embeddings.to(device).requires_grad_()
    classes, pairs = labels.to(device), ProxyContrastiveLoss()
    return {
        ("C2", f"C={count}"): lambda: pairs(inside, classes).backward(),
        ("C2-CCP-L", f"C={count}"): timing.LossStep(given, embeddings, labels, device),
        ("search", f"C={count}"): lambda: greedy_k_center(pool, centers, params.proxies_per_class),
    }


def ratios(costs: pd.DataFrame, params: Any) -> pd.DataFrame:
    """Tidy rows of the cost of a step over that of C2 within the batch with as many classes: `time_ratio`, `step_ratio`
    without what comes once per problem, and `loss_ratio` without the network. They differ from machine to machine."""
    costs = costs.set_index(timing.RUN)
    step = costs[["seconds", "penalty_seconds", "network_seconds"]].sum(axis=1)
    total = step + costs["problem_seconds"]
    parts = {"time_ratio": total, "step_ratio": step, "loss_ratio": total - costs["network_seconds"]}
    values = timing.over(pd.DataFrame(parts), "C2").drop("C2", level="method")
    return timing.rows(params, values, params.backbone, params.embedding_size)


def counts(params: Any) -> pd.DataFrame:
    """What does not depend on the machine: megabytes of the previous weights and of the proxies. Tidy, "synthetic"."""
    network = backbones.build(params.backbone, params.embedding_size)
    numbers = {("", "weights_megabytes"): sum(parameter.numel() for parameter in network.parameters())}
    size = params.proxies_per_class * params.embedding_size
    numbers |= {(f"C={count}", "proxy_megabytes"): count * size for count in params.class_counts}
    rows = [{"setting": of, "metric": name, "value": 4 * n / 1e6} for (of, name), n in numbers.items()]  # float32
    return study_rows(params, rows, method="C2-CCP-L", backbone=params.backbone, dim=params.embedding_size)


Cost = Study(
    "46_ccp_cost",
    parameters(  # `seeds` is the number of repetitions
        class_counts=tuple[Count, ...],
        network_images=Count,
        proxies_per_class=(Count, 4),
        pool_size=(Count, 7),
        problem_steps=(Whole, 1000),  # steps of a problem, over which what comes once per problem is spread
    ),
    paper="ccp",
    profiles={
        "*": {"batch_size": 32, "weights": "none", "backbone": "bn_inception", "embedding_size": 128}
        | {"image_size": 227, "class_counts": (100, 3997, 11318)},
        "quick": {"network_images": 2, "image_size": 128, "class_counts": (100, 1000), "seeds": 5},
        "small": {"network_images": 8, "seeds": 10},
        "paper": {"network_images": 32, "seeds": 20},
    },
    tabulate=lambda finished, params: counts(params),
    claims=TESTS,
    ratios=ratios,
)
