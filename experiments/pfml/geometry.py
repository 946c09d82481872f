"""Proposition 1 and Corollary 1 of the potential field paper, checked by moving proxies to equilibrium.

The claim: where a class has samples Z and delta is below `hypothesis_limit(Z)`, proxies that follow PFML's attraction
come to rest within delta of the samples they represent, so that their matching cost (printed as W_2) is at most delta;
under CPML's attraction, which grows with distance, it is larger than delta.

Notebook 12 says what the numbers of `study` show, and why. In D > alpha + 2 dimensions -sum r^-alpha is subharmonic
away from the samples: minima far from all of them exist, as the centroid of a regular simplex.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dmlrepro.losses.potential_field import Field, class_potential, contrastive_field, decaying_field


def hypothesis_limit(points: Tensor) -> float:
    """Proposition 1 needs delta below this: d_min / (2 (1 + 1/n)), points (n, D)."""
    return torch.pdist(points).min().item() / (2 + 2 / len(points))


def attraction_at(locations: Tensor, points: Tensor, field: Field) -> Tensor:
    """Psi_att (Eq. 9) of samples of one class at some locations, (L, D) and (n, D) -> (L,)."""
    return class_potential(locations, points, torch.zeros(len(points), dtype=torch.int64), 0, field)[0]


def equilibrium(starts: Tensor, points: Tensor, field: Field, generator: torch.Generator) -> Tensor:
    """Where proxies (m, D) come to rest in the attraction of points (n, D); the proxies do not act on each other.

    A direct search, since minima lie on kinks: every proxy takes the best of 128 steps of fixed length, and halves
    the length when none goes down, from delta / 2 to 1e-6 delta. On the rim of a ball that is exact in the distance
    from the sample and, with the directions being finite, to a few hundredths of delta along the rim.
    """
    directions = torch.nn.functional.normalize(torch.randn(64, starts.shape[1], generator=generator).to(starts), dim=1)
    directions = torch.cat([directions, -directions])
    places, step = starts.clone(), starts.new_full((len(starts), 1), field.delta / 2)
    potential = attraction_at(places, points, field)
    while (moving := (step > 1e-6 * field.delta).squeeze(1)).any():
        trials = places[moving, None] + step[moving, None] * directions
        values, best = attraction_at(trials.flatten(0, 1), points, field).view(trials.shape[:2]).min(1)
        down = values < potential[moving]
        walkers = moving.nonzero().squeeze(1)
        places[walkers[down]] = trials[down, best[down]]
        potential[walkers[down]] = values[down]
        step[walkers[~down]] /= 2
    return places


def matching_cost(proxies: Tensor, points: Tensor, power: int = 1) -> float:
    """Least mean distance of proxies to as many different points (power 1, printed as W_2); power 2: the true W_2."""
    from scipy.optimize import linear_sum_assignment

    cost = torch.cdist(proxies, points, compute_mode="donot_use_mm_for_euclid_dist").numpy() ** power
    return float(cost[linear_sum_assignment(cost)].mean() ** (1 / power))


def jittered_grid(side: int, generator: torch.Generator, jitter: float = 0.2) -> Tensor:
    """side^2 samples in the plane, one near each point of a unit grid, centred; the jitter is uniform, +- that much."""
    grid = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    grid += jitter * (2 * torch.rand(grid.shape, dtype=torch.float64, generator=generator) - 1)
    return grid - grid.mean(0)


def simplex(n: int) -> Tensor:
    """n points at distance sqrt(2) from one another, centred, in the n - 1 dimensions they span."""
    corners = torch.eye(n, dtype=torch.float64) - 1 / n
    return corners @ torch.linalg.svd(corners)[2][: n - 1].T


def compare(points: Tensor, delta: float, num_proxies: int, seed: int, start_spread: float = 1.0) -> dict[str, dict]:
    """Let proxies settle in both fields from the same normal starts; lengths in units of delta. The starts are drawn
    again until PFML's proxies rest nearest to different samples, as the corollary assumes: `redraws` times."""
    generator = torch.Generator().manual_seed(seed)
    spread = start_spread * points.std(0)
    redraws = -1
    nearest = torch.empty(0)
    while len(nearest.unique()) < num_proxies:
        if (redraws := redraws + 1) == 100:
            raise ValueError(f"num_proxies={num_proxies} never settled at different samples; use fewer proxies")
        starts = spread * torch.randn(num_proxies, points.shape[1], dtype=points.dtype, generator=generator)
        rest = {"PFML": equilibrium(starts, points, decaying_field(delta=delta, min_distance=delta), generator)}
        nearest = torch.cdist(rest["PFML"], points).argmin(1)
    rest["CPML"] = equilibrium(starts, points, contrastive_field(delta=delta, min_distance=delta), generator)
    return {
        method: {
            "W2/delta": matching_cost(proxies, points) / delta,
            "true W2/delta": matching_cost(proxies, points, power=2) / delta,
            "nearest/delta": torch.cdist(proxies, points).amin(1).mean().item() / delta,
            "redraws": redraws,
        }
        for method, proxies in rest.items()
    }


def study(seeds: Sequence[int] = range(5), numbers: Sequence[int] = (1, 2, 3, 5, 10)) -> list[dict]:
    """Every case as rows: method, setting, seed, metric, value. The setting is "M=..", the number of proxies, and where
    not the hypothesis of the corollary holds also "case=.."."""
    rows = []
    for seed in seeds:
        cloud = jittered_grid(7, torch.Generator().manual_seed(seed))
        limit = hypothesis_limit(cloud)
        cases = [("", cloud, 0.9 * limit, m, 1.0) for m in numbers]
        cases += [(";case=closer than delta", cloud, torch.pdist(cloud).max().item(), m, 1.0) for m in numbers]
        centered = jittered_grid(7, torch.Generator().manual_seed(seed), jitter=0)
        cases += [(";case=a sample at the mean", centered, 0.9 * hypothesis_limit(centered), 1, 1.0)]
        corners = simplex(12)
        cases += [(";case=simplex in 11 dimensions", corners, 0.9 * hypothesis_limit(corners), 1, 0.1)]
        for case, points, delta, m, start_spread in cases:
            for method, values in compare(points, delta, m, seed, start_spread).items():
                common = {"method": method, "setting": f"M={m}{case}", "seed": seed}
                rows += [common | {"metric": metric, "value": value} for metric, value in values.items()]
    return rows


def picture(method: str, delta: float = 0.2, cells: int = 120) -> tuple[Tensor, ...]:
    """Fig. 2, the field of class 1 of two in the plane under "PFML" or "CPML": axis (cells,), potential (cells, cells),
    force (cells, cells, 2), points (N, 2), labels (N,). The distance in the force law is floored at 0.6 delta, or
    PFML's repulsion would leave nothing else visible."""
    laws: dict[str, Callable[..., Field]] = {"PFML": decaying_field, "CPML": contrastive_field}
    field = laws[method](delta=delta, min_distance=0.6 * delta)
    first = [(-0.85, 0.6), (-0.7, 0.75), (-0.6, 0.55), (0.6, -0.75), (0.75, -0.6), (0.45, 0.1)]
    second = [(-0.75, -0.65), (-0.6, -0.5), (-0.5, -0.75), (0.7, 0.7), (0.85, 0.55), (0.3, 0.25)]
    points = torch.tensor(first + second, dtype=torch.float64)
    labels = torch.tensor([1] * len(first) + [2] * len(second))
    axis = torch.linspace(-1.15, 1.15, cells, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis).flip(1)  # rows of the grid are y
    potential, force = class_potential(grid, points, labels, 1, field)
    return axis, potential.view(cells, cells), force.view(cells, cells, 2), points, labels
