"""Notebook 17: what a training step costs with PFML, beside ProxyNCA++ and ProxyAnchor (the paper's Table 9).

A step and how it is measured: `experiments.timing`. Repulsion costs by the close pairs of different classes alone, so
PFML is measured for scattered points, as at the start of training, and for crowded ones, with 1 % of close pairs.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments import timing
from experiments.analysis import summaries
from experiments.analysis.tables import settings_of
from experiments.networks import backbones
from experiments.params import Count, parameters
from experiments.pfml.claims import TESTS
from experiments.pfml.methods import METHODS
from experiments.studies import study_rows
from experiments.study import Study
from experiments.training.builders import loss_builder
from experiments.training.device import device_for_training

BASELINES = ("ProxyNCA++", "ProxyAnchor")
CLASS_PROXIES = 2  # a class has so many where the number of classes varies, as in the paper on SOP
GROUPS = 100  # crowded points form so many: a pair is close with probability 1 / GROUPS


def measure(params: Any) -> pd.DataFrame:
    """Seconds of the loss's part of a step, and of the network's, scaled up to a batch, a row per method, setting and
    repetition (`seed`); and megabytes of the loss's part at the peak, gradients included, which are measured once."""
    device = device_for_training()
    with timing.threads(params.threads):
        parts = {key: _loss_step(params, *key, device) for key in _cases(params)}
        images = (params.network_images, params.image_size, device)
        network = timing.network_and_images(params.backbone, params.weights, params.embedding_size, *images)
        costs = timing.steps(parts, *network, params.batch_size, params.seeds).reset_index()
        memory = {key: timing.peak_bytes(step, device.type) / 1e6 for key, step in parts.items()}
    return costs.assign(megabytes=[memory[key] for key in zip(costs["method"], costs["setting"])])


def _cases(params: Any) -> Iterator[tuple[str, str]]:
    """(method, setting): against the number of proxies, then against the number of classes."""
    yield from ((name, "") for name in BASELINES)
    for crowded in ("", ";points=crowded"):
        yield from (("PFML", f"M={number}{crowded}") for number in params.numbers)
    for classes in params.class_counts:
        yield from ((name, f"C={classes}") for name in BASELINES)
        yield "PFML", f"C={classes};M={CLASS_PROXIES}"


def _loss_step(params: Any, method: str, setting: str, device: torch.device) -> timing.LossStep:
    options = settings_of(setting)
    classes = int(options.get("C", params.num_classes))
    proxies = {"proxies_per_class": int(options["M"])} if "M" in options else {}
    generator = torch.Generator().manual_seed(2)  # neither that of the proxies nor that of the centres of a crowd
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        loss = loss_builder(METHODS[method].loss or "")(classes, params.embedding_size, **proxies)
    embeddings = torch.randn(params.batch_size, params.embedding_size, generator=generator)
    if "points" in options:
        embeddings = crowd(embeddings, generator)
        with torch.no_grad():
            loss.proxies.copy_(crowd(loss.proxies.flatten(0, 1), generator).view_as(loss.proxies))
    labels = torch.randint(classes, (params.batch_size,), generator=generator)
    return timing.LossStep(loss, embeddings, labels, device)


def crowd(points: Tensor, generator: torch.Generator, spread: float = 0.1) -> Tensor:
    """Unit vectors around GROUPS common centres, (N, D) -> (N, D): two of one group are about 1.4 spread apart."""
    centers = F.normalize(torch.randn(GROUPS, points.shape[1], generator=torch.Generator().manual_seed(1)), dim=1)
    nearby = centers[torch.randint(GROUPS, (len(points),), generator=generator)]
    return F.normalize(nearby + spread * F.normalize(points, dim=1), dim=1)


def counts(params: Any) -> pd.DataFrame:
    """What does not depend on the machine, tidy: learned numbers, points, unordered pairs of one class, and close ones,
    within delta, of different classes."""
    rows = []
    for method, setting in _cases(params):
        step = _loss_step(params, method, setting, torch.device("cpu"))
        values = {"parameters": step.optimizer.param_groups[0]["params"][0].numel()}
        if method == "PFML":
            proxies = step.loss.proxies.detach()
            points = F.normalize(torch.cat([proxies.flatten(0, 1), step.embeddings.detach()]), dim=1)
            labels = torch.cat([torch.arange(len(proxies)).repeat_interleave(proxies.shape[1]), step.labels])
            least = 1 - step.loss.field.delta_rep**2 / 2  # the cosine of unit vectors that far apart
            close = sum(
                ((some @ points.T > least) & (own[:, None] != labels)).sum().item()
                for some, own in zip(points.split(1024), labels.split(1024))
            )
            sizes = labels.bincount()
            of_a_class = (sizes * (sizes - 1) // 2).sum().item()
            values |= {"points": len(points), "pairs_of_a_class": of_a_class, "close_pairs": close // 2}
        rows += [{"method": method, "setting": setting, "metric": name, "value": x} for name, x in values.items()]
    network = backbones.build(params.backbone, params.embedding_size)
    size = sum(parameter.numel() for parameter in network.parameters())
    rows.append({"method": params.backbone, "setting": "", "metric": "parameters", "value": size})
    return study_rows(params, rows, dim=params.embedding_size)


def ratios(costs: pd.DataFrame, params: Any) -> pd.DataFrame:
    """Tidy rows of the cost of a step, and of the loss's part alone, over ProxyNCA++ with as many classes; and of
    loss_exponent, the power with which PFML's part grows with the proxies per class from M = 5, and with the classes
    from the number before: 1 is linear. Never part of a saved table: they differ from machine to machine."""
    # by setting of PFML: the one that its growth is counted from, how many times as many proxies it has
    earlier = {f"M={number}": ("M=5", number / 5) for number in params.numbers if number > 5}
    for few, many in itertools.pairwise(sorted(params.class_counts)):
        earlier[f"C={many};M={CLASS_PROXIES}"] = (f"C={few};M={CLASS_PROXIES}", many / few)
    costs = costs.set_index(timing.RUN)
    seconds = costs["seconds"]
    parts = {"loss_seconds_ratio": seconds, "loss_megabytes_ratio": costs["megabytes"]}
    parts["seconds_ratio"] = seconds + costs["network_seconds"]
    values = timing.over(
        pd.DataFrame(parts), "ProxyNCA++", lambda setting: setting.partition(";")[0] * ("C=" in setting)
    )
    exponents = {
        (method, setting, seed): math.log(taken / seconds[method, earlier[setting][0], seed], earlier[setting][1])
        for (method, setting, seed), taken in seconds.items()
        if setting in earlier
    }
    values = values.assign(loss_seconds=seconds, loss_exponent=pd.Series(exponents, values.index, float))
    return timing.rows(params, values, params.backbone, params.embedding_size)


def published_curve() -> dict[str, dict[float, float]]:
    """Seconds of an epoch over those with ProxyNCA against M, from Table 9, for `charts.ablation`."""
    printed = summaries.published("pfml", "Table 9 (supp)").set_index("method")["value"]
    of_field = {float(number): printed[f"Potential Field (Ours) M={number}"] for number in (5, 20, 30)}
    return {"Cars-196": {number: seconds / printed["ProxyNCA"] for number, seconds in of_field.items()}}


RESNET = {"backbone": "resnet50", "embedding_size": 512}
Cost = Study(
    "17_pfml_cost",
    parameters(  # `seeds` is the number of repetitions
        num_classes=(Count, 98),
        numbers=(tuple[Count, ...], (1, 5, 15, 20, 30)),
        class_counts=tuple[Count, ...],
        network_images=Count,
    ),
    paper="pfml",
    profiles={
        "*": {"weights": "none", "class_counts": (98, 1000, 4000, 11318)},
        "quick": RESNET | {"image_size": 112, "network_images": 5, "class_counts": (98, 1000, 4000), "seeds": 5},
        "small": RESNET | {"image_size": 224, "network_images": 20, "seeds": 10},
        "paper": {"network_images": 100, "seeds": 20},
    },
    references={"numbers": (5,)},
    tabulate=lambda finished, params: counts(params),
    claims=TESTS,
    ratios=ratios,
)
