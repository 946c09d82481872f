"""Seconds of what CCP adds to training: the greedy k-center search, and each part of a step and of a new problem.

    python benchmarks/k_center.py            all cases, two minutes; writes results/benchmarks/k_center.csv
    python benchmarks/k_center.py --quick    a small case, seconds; prints, writes nothing

search   11,318 classes (SOP), 7 samples of each in the pool, 4 proxies, 128 dimensions. "product" searches all classes
         at once, "per class" calls the same function class by class; both give the same picks, which is checked first.
step     C2 on 32 images of 227 pixels and BN-Inception, 100 classes with 8 proxies (CUB). "network": forward, backward
         and update; "C2": the loss within the batch; "C2 on proxies": the same with proxies, and their update;
         "penalty": forward and backward of the projection penalty. Seconds per step.
problem  "pool": the embeddings of 12 samples of each class, once per problem; "validation": those of 1,466 images, a
         fold of CUB, once per evaluation, with or without CCP. Forward passes of a few images, scaled up.

All forms of a case take turns in one process, and their seconds are medians; only ratios within one run carry over to
another machine, except that the search must take less than 2 s. The device is that of training; one thread on a CPU.
"""

import statistics
from typing import NamedTuple

import harness
import torch
from torch import Tensor

from dmlrepro.losses.chance_constrained import ProxyContrastiveLoss, greedy_k_center, projection_penalty
from experiments import timing
from experiments.training.algorithms.chance_constrained import GivenProxies
from experiments.training.device import device_for_training
from experiments.training.keys import device_name


class Search(NamedTuple):
    classes: int = 11_318
    pool: int = 7
    proxies: int = 4
    dim: int = 128


class Step(NamedTuple):
    backbone: str = "bn_inception"
    image_size: int = 227
    measured: int = 8  # images whose passes are measured and scaled up to the batch
    classes: int = 100
    proxies: int = 8
    pool: int = 12
    validation: int = 1466


BATCH, DIM, REPEATS = 32, 128, 3
FULL, QUICK = (Search(), Step()), (Search(300), Step("conv4", 32, 4, classes=10))
MOST_SECONDS = 2.0
LIMITS = {("search", "seconds", "per class"): 1.0}


def problem(case: Search, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    pool = torch.randn(case.classes, case.pool, case.dim, generator=generator)
    return pool.to(device), torch.randn(case.classes, case.proxies, case.dim, generator=generator).to(device)


def search(case: Search, device: torch.device) -> list[dict]:
    """A row per form; AssertionError if their picks differ."""
    pool, centers = problem(case, device)

    def product() -> Tensor:
        return greedy_k_center(pool, centers, case.proxies)

    def per_class() -> Tensor:
        return torch.stack([greedy_k_center(p, c, case.proxies) for p, c in zip(pool, centers)])

    if not torch.equal(product(), per_class()):
        raise AssertionError("all classes at once give other picks than class by class")
    return rows("search", timing.in_turn({"product": product, "per class": per_class}, REPEATS, device.type))


def step_and_problem(case: Step, device: torch.device) -> list[dict]:
    network, images = timing.network_and_images(case.backbone, "none", DIM, case.measured, case.image_size, device)
    passes, update = timing.network_step(network, images)
    labels = (torch.arange(BATCH) // 4) % case.classes
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(BATCH, DIM, generator=generator)
    given = GivenProxies(ProxyContrastiveLoss(), case.classes, case.proxies, DIM)
    given.proxies.data.normal_(generator=generator)
    moving = list(network.parameters())
    anchors = [parameter.detach().clone() for parameter in moving]

    def forward() -> None:
        with torch.no_grad():
            network(images)

    def penalty() -> None:
        network.zero_grad(set_to_none=True)
        projection_penalty(moving, anchors, 2e-4).backward()

    calls = {
        "passes": passes,
        "update": update,
        "forward": forward,
        "penalty": penalty,
        "C2": lambda: ProxyContrastiveLoss()(embeddings.to(device).requires_grad_(), labels.to(device)).backward(),
        "C2 on proxies": timing.LossStep(given, embeddings, labels, device),
    }
    times = timing.in_turn(calls, REPEATS, device.type)
    passes, forward = ([second / case.measured for second in times.pop(name)] for name in ("passes", "forward"))
    network = [BATCH * one + other for one, other in zip(passes, times.pop("update"))]
    number = case.classes * case.pool
    return rows("step", {"network": network, **times}) + rows(
        "problem", {"pool": [number * one for one in forward], "validation": [case.validation * one for one in forward]}
    )


def rows(case: str, times: dict[str, list[float]]) -> list[dict]:
    return [
        {"case": case, "device": device_name(), "form": form, "metric": "seconds", "value": statistics.median(values)}
        for form, values in times.items()
    ]


def main(search_case: Search, step_case: Step) -> list[dict]:
    device = device_for_training()
    with timing.threads(1):
        return search(search_case, device) + step_and_problem(step_case, device)


def judge(rows: list[dict]) -> bool:
    """Print the seconds of the search and all ratios; whether what has a limit keeps it."""
    by_case: dict[str, dict[str, float]] = {}
    for row in rows:
        by_case.setdefault(row["case"], {})[row["form"]] = row["value"]
    fast = harness.within("search: seconds", by_case["search"]["product"], most=MOST_SECONDS)
    fast &= harness.ratios_within([("search", "seconds", by_case["search"])], LIMITS)
    step = by_case["step"]
    plain = step["network"] + step["C2"]
    for name, more in {"penalty": step["penalty"], "proxies": step["C2 on proxies"] - step["C2"]}.items():
        harness.within(f"step: the {name}, % of a step with C2,", 100 * more / plain)
    for name, value in by_case["problem"].items():
        harness.within(f"problem: the {name}, in steps with C2,", value / plain)
    return fast


if __name__ == "__main__":
    quick = harness.options(__doc__).quick
    rows = main(*(QUICK if quick else FULL))
    harness.finish("k_center", harness.with_ratios(rows), judge(rows), quick)
