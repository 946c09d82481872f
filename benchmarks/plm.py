"""Time of the linear pieces of a batch and the similarities along them, against the literal way to find them.

    python benchmarks/plm.py            all cases, a few minutes; writes results/benchmarks/plm.csv
    python benchmarks/plm.py --quick    one small case, seconds; prints, writes nothing

product     `pieces_and_similarity`, as the loss calls it: Gram matrices, all points of the batch at once
literal     Sec. 3.2 to the letter: for each point and each candidate an SVD of the D-dimensional members

Points are those of classes on the sphere, about each centre in three directions, with noise across them; float64 for
both forms, which first are shown to find the same members, the same pieces up to rotation and the same similarities.
They take turns in one process on one thread (--threads), and the seconds are the medians of its CPU time. Only ratios
within one run carry over to another machine; the exit status is 1 if one of them misses its limit.

With k fixed, the product's time is that of N^2 (D + m k) multiplications, beside what is linear in N: N m k D of them
for the bases, and eigenproblems of k + 1 rows. The exponent over a range of N is printed; by that law it
lies between 1 and 2. --device cuda times the product alone.
"""

import math
import statistics
from typing import NamedTuple

import harness
import torch
import torch.nn.functional as F
from torch import Tensor

from dmlrepro.losses.piecewise_linear import pieces_and_similarity
from experiments import timing
from experiments.training.device import reuse_freed_memory

QUALITY = 0.9


class Case(NamedTuple):
    points: int
    k: int
    dim: int = 512
    pieces: int = 3  # m
    noise: float = 1.0  # length across the three directions of a class over that along each of them


CASES = {
    "tiny": Case(24, 6, 16),
    "quick": Case(60, 9, 64),
    **{f"k={k}": Case(200, k) for k in (9, 12, 16, 20)},
    **{f"k={k}, flat": Case(200, k, noise=0.2) for k in (9, 20)},  # most neighbours are kept
    **{f"N={points}": Case(points, 9) for points in (100, 400, 800, 1600)},
}
COMPARED = ("k=9", "k=12", "k=16", "k=20", "k=9, flat", "k=20, flat")
GROWING = ("N=100", "k=9", "N=400", "N=800", "N=1600")
PLAN = (
    *((name, ("product", "literal"), 3) for name in COMPARED),
    *((name, ("product",), 9) for name in GROWING if name not in COMPARED),
)
QUICK = (("quick", ("product", "literal"), 3),)
LIMITS = {(name, "seconds", "literal"): 1 / 20 for name in COMPARED}
EXPONENT = 2.0


def problem(case: Case, device: str = "cpu") -> Tensor:
    """Unit points (N, D) of five classes."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    label = torch.arange(case.points) % max(case.points // 40, 2)
    centres, frames = normal(int(label.max()) + 1, case.dim), normal(int(label.max()) + 1, 3, case.dim)
    along = (0.5 * normal(case.points, 1, 3) @ frames[label]).squeeze(1)
    across = 0.5 * case.noise * normal(case.points, case.dim) / case.dim**0.5
    return F.normalize(centres[label] + along + across, dim=1).to(device)


def literal_pieces(points: Tensor, k: int, dim: int) -> tuple[Tensor, Tensor]:
    bases, members = [], torch.zeros(len(points), len(points), dtype=torch.bool)
    for i, point in enumerate(points):
        apart = torch.linalg.vector_norm(points - point, dim=1)
        apart[i] = -1
        order = apart.argsort()[: k + 1].tolist()
        chosen = order[:dim]
        for candidate in order[dim:]:
            tried = points[[*chosen, candidate]]
            centred = tried - tried.mean(0)
            basis = torch.linalg.svd(centred, full_matrices=False).Vh[:dim]
            residual = centred - centred @ basis.T @ basis
            if (residual.square().sum(1) <= (1 - QUALITY) * centred.square().sum(1) + 1e-12).all():
                chosen.append(candidate)
        centred = points[chosen] - points[chosen].mean(0)
        bases.append(torch.linalg.svd(centred, full_matrices=False).Vh[:dim])
        members[i, chosen] = True
    return torch.stack(bases), members


def literal_similarity(points: Tensor, bases: Tensor) -> Tensor:
    """Eqs. 2-5, one piece at a time."""
    columns = []
    for point, basis in zip(points, bases):
        difference = points - point
        along = difference @ basis.T
        o = torch.linalg.vector_norm(difference - along @ basis, dim=1)
        columns.append((1 + o / 2) ** -4.0 * (1 + torch.linalg.vector_norm(along, dim=1)) ** -0.5)
    one_way = torch.stack(columns, dim=1)
    return (one_way + one_way.T) / 2


def solve(form: str, case: Case, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Bases, members and similarities."""
    if form == "product":
        return pieces_and_similarity(points, case.k, case.pieces, QUALITY)
    bases, members = literal_pieces(points, case.k, case.pieces)
    return bases, members, literal_similarity(points, bases)


def disagreement(case: Case, points: Tensor) -> float:
    """Largest difference of the two forms in projectors and similarities; infinite if members differ."""
    (bases, members, similarity), (others, expected, expected_similarity) = (
        solve(form, case, points) for form in ("product", "literal")
    )
    if not torch.equal(members, expected):
        return math.inf
    pieces = max((a.T @ a - b.T @ b).abs().max().item() for a, b in zip(bases, others))
    return max(pieces, (similarity - expected_similarity).abs().max().item())


def seconds(name: str, forms: tuple[str, ...], repeats: int, threads: int, device: str) -> list[dict]:
    """Median seconds of forms that take turns in this process."""
    torch.set_num_threads(threads)
    reuse_freed_memory()  # as training does
    case, points = CASES[name], problem(CASES[name], device)
    if "literal" in forms and (worst := disagreement(case, points)) > 1e-6:
        raise AssertionError(f"{name}: product and literal differ by {worst:.1e}")
    times = timing.in_turn({form: lambda form=form: solve(form, case, points) for form in forms}, repeats, device)
    kept = solve("product", case, points)[1].sum(1).double().mean().item()
    return [row(name, form, statistics.median(times[form]), threads, device, kept) for form in forms]


def row(name: str, form: str, value: float, threads: int, device: str, kept: float) -> dict:
    return {
        "case": name,
        **CASES[name]._asdict(),
        "members": round(kept, 2),
        "form": form,
        "device": device,
        "threads": threads,
        "metric": "seconds",
        "value": value,
    }


def exponent(rows: list[dict]) -> float:
    """Power of the number of points with which the product's seconds grow over GROWING."""
    by_case = {r["case"]: r for r in rows if r["form"] == "product"}
    logs = [(math.log(by_case[name]["points"]), math.log(by_case[name]["value"])) for name in GROWING]
    return statistics.linear_regression(*zip(*logs)).slope


def judge(rows: list[dict]) -> bool:
    """Print every ratio and the exponent; whether all keep their limits."""
    groups = {}
    for r in rows:
        groups.setdefault(r["case"], {})[r["form"]] = r["value"]
    passed = harness.ratios_within([(case, "seconds", values) for case, values in groups.items()], LIMITS)
    if set(groups) >= set(GROWING):
        passed &= harness.within("k=9: exponent of the seconds in N", exponent(rows), most=EXPONENT)
    return passed


if __name__ == "__main__":
    options = harness.options(__doc__, {"seconds": seconds}, threads=1, device="cpu")
    on_cpu, plan = options.device == "cpu", QUICK if options.quick else PLAN
    plan = [(name, forms if on_cpu else ("product",), repeats) for name, forms, repeats in plan]
    rows = [r for case in plan for r in harness.apart(__file__, "seconds", *case, options.threads, options.device)]
    harness.finish("plm", harness.with_ratios(rows), judge(rows), options.quick or not on_cpu)
