"""Time and memory of the potential field energy, forward and backward, against its literal form.

    python benchmarks/pfml.py            all cases, about ten minutes; writes results/benchmarks/pfml.csv
    python benchmarks/pfml.py --quick    one small case, seconds; prints, writes nothing

product     `PotentialFieldLoss`: finds the interacting pairs and evaluates only those
literal     Eqs. 1-6 by autograd through all pairs: torch.cdist, clamp, power, torch.where
matmul      the product of all points with one another, no more and no gradient: what any full comparison costs
resnet50    forward and backward of the network on 10 images of 224 px, times 10 for the paper's batch of 100

The forms of a case take turns in one process, so that a busy machine slows them alike, and their seconds are medians;
value and gradient of product and literal are compared first. Memory is the rise of the peak of a process of its own
over its state before one forward and backward pass, gradients included. Only ratios within one run carry over to
another machine; the exit status is 1 if one of them misses its limit. One thread unless --threads says otherwise, and
then the seconds are the process's CPU time, which other programs disturb least.
"""

import math
import statistics
from typing import NamedTuple

import harness
import torch
import torch.nn.functional as F
from torch import Tensor

from dmlrepro.losses.potential_field import PotentialFieldLoss
from experiments import timing

ALPHA, DELTA = 3.0, 0.2


class Case(NamedTuple):
    """Points are uniform on the sphere, or, with clusters, around random centres at distances up to delta.

    A class does not keep to a cluster: close pairs are of different classes. They make up about 0.8 / clusters.
    """

    classes: int
    proxies: int
    batch: int
    dim: int = 512
    clusters: int = 0


CASES = {
    "tiny": Case(30, 2, 20, 16, 4),
    "quick": Case(1000, 2, 60, 64, 20),
    "random": Case(4000, 2, 180),
    "1 % close": Case(4000, 2, 180, clusters=78),
    "10 % close": Case(4000, 2, 180, clusters=8),
    "cub": Case(100, 15, 100),
    "cub, 4 % close": Case(100, 15, 100, clusters=20),
    "sop": Case(11318, 2, 180),
    "1000 x 2": Case(1000, 2, 180),
    "2000 x 2": Case(2000, 2, 180),
    "8000 x 2": Case(8000, 2, 180),
}
LARGE = ("random", "1 % close", "10 % close")
PLAN = (  # case, forms that take turns, repeats
    *((name, ("product", "literal"), 5) for name in LARGE),
    ("cub", ("product", "matmul"), 31),
    ("cub, 4 % close", ("product", "matmul"), 31),
    ("cub", ("product", "resnet50"), 3),
    *((name, ("product", "matmul"), 5) for name in ("1000 x 2", "2000 x 2", "8000 x 2", "sop")),
)
MEMORY_PLAN = (*((name, form) for name in LARGE for form in ("product", "literal")), ("sop", "product"))
SLOPE = ("1000 x 2", "2000 x 2", "random", "8000 x 2", "sop")  # these differ in the number of proxies only
QUICK = ((("quick", ("product", "literal", "matmul"), 5),), (("quick", "product"), ("quick", "literal")))
LIMITS = {  # (case, metric, compared with): largest ratio
    **{(name, "seconds", "literal"): 1 / 8 for name in LARGE},
    **{(name, "megabytes", "literal"): 1 / 10 for name in LARGE},
    ("cub", "seconds", "matmul"): 2.0,
}
SOP_MEGABYTES = 4000


def problem(case: Case) -> tuple[PotentialFieldLoss, Tensor, Tensor]:
    """The loss with its proxies, a batch, its labels."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    loss = PotentialFieldLoss(case.classes, case.dim, case.proxies, ALPHA, DELTA, proxy_norm=None)
    embeddings = torch.randn(case.batch, case.dim, generator=generator)
    labels = torch.randint(case.classes, (case.batch,), generator=generator)
    if case.clusters:
        centers = F.normalize(torch.randn(case.clusters, case.dim, generator=generator), dim=1)
        for points in (loss.proxies.data.flatten(0, 1), embeddings):
            spread = DELTA * (0.1 + 0.9 * torch.rand(len(points), 1, generator=generator))
            points *= spread / math.sqrt(case.dim)
            points += centers[torch.randint(case.clusters, (len(points),), generator=generator)]
    return loss, embeddings.requires_grad_(), labels


def all_points(loss: PotentialFieldLoss, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    classes = torch.arange(len(loss.proxies)).repeat_interleave(loss.proxies.shape[1])
    points = F.normalize(torch.cat([loss.proxies.flatten(0, 1), embeddings]), dim=1)
    return points, torch.cat([classes, labels])


def literal_energy(points: Tensor, labels: Tensor) -> Tensor:
    """Eq. 6 above its least, but for the points' action on themselves."""
    r, least = torch.cdist(points, points), DELTA**-ALPHA
    same = labels[:, None] == labels
    psi = torch.where(same, least - 1 / r.clamp_min(DELTA) ** ALPHA, 1 / r.clamp(0.01, DELTA) ** ALPHA - least)
    return psi.sum() - psi.diagonal().sum()


def close_share(loss: PotentialFieldLoss, embeddings: Tensor, labels: Tensor) -> float:
    """Fraction of all pairs that lie within delta, estimated on 1,000 rows."""
    points = all_points(loss, embeddings, labels)[0].detach()
    some = torch.linspace(0, len(points) - 1, min(1000, len(points))).long()
    within = torch.cdist(points[some], points) < DELTA
    return (within.sum().item() - len(some)) / (within.numel() - len(some))


def step(form: str, loss: PotentialFieldLoss, embeddings: Tensor, labels: Tensor) -> Tensor:
    """One forward and backward pass that leaves gradients everywhere; returns the energy."""
    loss.zero_grad()
    embeddings.grad = None
    if form == "product":
        energy = loss(embeddings, labels)
    else:
        energy = literal_energy(*all_points(loss, embeddings, labels))
    energy.backward()
    return energy.detach()


def resnet_step():
    from torchvision.models import resnet50

    network = resnet50(num_classes=512)
    images = torch.randn(10, 3, 224, 224)
    return lambda: network(images).square().sum().backward()


def disagreement(loss: PotentialFieldLoss, embeddings: Tensor, labels: Tensor) -> float:
    """Relative difference of the two forms: of the energy and, at its worst, of the gradients."""
    results = []
    for form in ("product", "literal"):
        energy = step(form, loss, embeddings, labels)
        results.append([energy, embeddings.grad.clone(), loss.proxies.grad.clone()])
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(*results))


def seconds(name: str, forms: tuple[str, ...], repeats: int, threads: int) -> list[dict]:
    """Median seconds of forms that take turns in this process."""
    torch.set_num_threads(threads)
    arguments = problem(CASES[name])
    if "literal" in forms and (worst := disagreement(*arguments)) > 1e-2:  # cdist's matrix product has float32's error
        raise AssertionError(f"{name}: product and literal differ by {worst:.1e}")
    points = all_points(*arguments)[0].detach()
    calls = {form: lambda form=form: step(form, *arguments) for form in forms}
    if "matmul" in forms:
        calls["matmul"] = lambda: points @ points.T
    if "resnet50" in forms:
        calls["resnet50"] = resnet_step()
    times = timing.in_turn(calls, repeats, "cpu")
    scale = {"resnet50": 10}
    return [
        row(name, form, "seconds", scale.get(form, 1) * statistics.median(times[form]), threads, *arguments)
        | {"turns": "/".join(forms)}
        for form in forms
    ]


def megabytes(name: str, form: str, threads: int) -> dict:
    """Rise of this process's peak memory during one pass."""
    torch.set_num_threads(threads)
    step(form, *problem(CASES["tiny"]))
    arguments = problem(CASES[name])
    value = harness.process_peak_bytes(lambda: step(form, *arguments), "cpu") / 1e6
    return row(name, form, "megabytes", value, threads, *arguments)


def row(name: str, form: str, metric: str, value: float, threads: int, *arguments) -> dict:
    shape = CASES[name]._asdict()
    shape.pop("clusters")
    share = close_share(*arguments)
    return {
        "case": name,
        **shape,
        "close": share,
        "turns": "",
        "form": form,
        "threads": threads,
        "metric": metric,
        "value": value,
    }


def slope(rows: list[dict]) -> float:
    """Exponent of the seconds against the number of proxies, fitted over SLOPE."""
    by_case = {r["case"]: r for r in rows if r["form"] == "product" and r["metric"] == "seconds"}
    logs = [
        (math.log(by_case[name]["classes"] * by_case[name]["proxies"]), math.log(by_case[name]["value"]))
        for name in SLOPE
    ]
    x, y = zip(*logs)
    return statistics.linear_regression(x, y).slope


def judge(rows: list[dict]) -> bool:
    """Print every ratio; whether all that have a limit keep it."""
    groups = {}
    for r in rows:  # only forms that took turns are compared in seconds
        groups.setdefault((r["case"], r["metric"], r["turns"]), {})[r["form"]] = r["value"]
    compared = [(case, metric, values) for (case, metric, _), values in groups.items()]
    passed = harness.ratios_within(compared, LIMITS)
    for r in rows:
        if (r["case"], r["form"], r["metric"]) == ("sop", "product", "megabytes"):
            passed &= harness.within("sop: megabytes", r["value"], most=SOP_MEGABYTES)
    if {r["case"] for r in rows} >= set(SLOPE):
        print(f"seconds grow with proxies to the power {slope(rows):.2f}")
    return passed


def main(plan, memory_plan, threads: int) -> list[dict]:
    rows = [r for case in plan for r in harness.apart(__file__, "seconds", *case, threads)]
    return rows + [harness.apart(__file__, "megabytes", *case, threads) for case in memory_plan]


if __name__ == "__main__":
    options = harness.options(__doc__, {"seconds": seconds, "megabytes": megabytes}, threads=1)
    rows = main(*(QUICK if options.quick else (PLAN, MEMORY_PLAN)), options.threads)
    harness.finish("pfml", harness.with_ratios(rows), judge(rows), options.quick, close=".2g")
