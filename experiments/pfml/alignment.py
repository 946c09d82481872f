"""Notebook 12: do proxies align with the data they stand for? (Fig. 2, Proposition 1, Corollary 1, Table 3)

The claim: where a class has samples Z and delta is below `hypothesis_limit(Z)`, proxies that follow PFML's attraction
come to rest within delta of the samples they represent, so that their matching cost (printed as W_2) is at most delta;
under CPML's attraction, which grows with distance, it is larger. Notebook 12 says what the numbers of `study` show.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from dmlrepro import metrics
from dmlrepro.losses.baselines import proxies_of
from dmlrepro.losses.potential_field import Field, class_potential, contrastive_field, decaying_field
from experiments import studies
from experiments.methods import expand_seeds, pick, search_each, spec_of
from experiments.params import Count, Whole, parameters
from experiments.pfml.methods import METHODS, FieldOptions, pfml_study
from experiments.training.records import measurement
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec

# How PFML is trained once more: as the paper's words have it, with proxies that are normalised in the forward pass only
# and gradients that nothing clips, and in shuffled batches with and without clipping
DRAWN = {"loss_options": {"proxy_norm": None}}
SHUFFLED, UNCLIPPED = {"samples_per_class": None}, {"loss_clip_value": None}
OTHERWISE: dict[str, dict] = {
    "proxies=as drawn": DRAWN,
    "gradients=unclipped": UNCLIPPED,
    "proxies=as drawn;gradients=unclipped": DRAWN | UNCLIPPED,
    "batches=shuffled": SHUFFLED,
    "batches=shuffled;gradients=unclipped": SHUFFLED | UNCLIPPED,
}


def proxy_alignment(params: Any) -> list[RunSpec]:
    """The methods of Table 3; those with several proxies per class have the same number, as the paper demands. Then
    PFML in the variants of OTHERWISE."""
    centers = {"SoftTriple": {"centers_per_class": params.proxies_per_class}}
    specs = [spec_of(method, params, loss_options=centers.get(method.name)) for method in pick(METHODS, params.methods)]
    specs = search_each(specs, METHODS, params)
    otherwise = []
    for spec in (spec for spec in specs if spec.method == "PFML"):
        for setting in OTHERWISE if params.all_variants else ("proxies=as drawn",):
            options = {**spec.loss_options, **OTHERWISE[setting].get("loss_options", {})}
            otherwise.append(spec.replace(setting=setting, **OTHERWISE[setting] | {"loss_options": options}))
    return studies.with_histories(expand_seeds(specs, params)) + expand_seeds(otherwise, params)


def alignments_of(run: RunResult, params: Any) -> list:
    return [studies.measured(run, _alignment)] if run.spec.loss else []


def alignment_table(finished: Iterable[RunResult], params: Any) -> pd.DataFrame:
    """The rows of finished runs; of those that are trained W2 between the proxies and the training embeddings, in three
    readings, and the spread of the classes; after them the numerical study, whose data set is "synthetic"."""
    trained = studies.without_histories(studies.with_measures(finished, alignments_of, params))
    numeric = studies.study_rows(params, study(range(params.point_sets)))
    return pd.concat([trained, numeric], ignore_index=True)


@measurement("pfml.alignment")
def _alignment(run: RunResult) -> dict[str, float]:
    manifest, embeddings, labels = studies.training_embeddings(run)
    proxies = proxies_of(studies.trained_loss(run, manifest, embeddings.shape[1]))
    readings = {"W2": "assignment", "true W2": "w2", "nearest sample": "nearest"}
    values = {
        name: metrics.proxy_wasserstein(proxies, embeddings, labels, form)[0]  # type: ignore[arg-type]
        for name, form in readings.items()
    }
    return values | class_distances(embeddings, labels)


def class_distances(embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    """Mean distance of unit embeddings (N, D) within a class, averaged over classes, and between all classes."""
    points, classes = F.normalize(embeddings.double(), dim=1), labels.unique()
    pairs = [F.pdist(points[labels == label]) for label in classes]
    within = torch.stack([distances.mean() for distances in pairs if len(distances)]).mean()
    means = torch.stack([points[labels == label].mean(0) for label in classes])
    return {"intra_class_distance": within.item(), "class_mean_distance": F.pdist(means).mean().item()}


def hypothesis_limit(points: Tensor) -> float:
    """Proposition 1 needs delta below this: d_min / (2 (1 + 1/n)), points (n, D)."""
    return F.pdist(points).min().item() / (2 + 2 / len(points))


def equilibrium(starts: Tensor, points: Tensor, field: Field, generator: torch.Generator) -> Tensor:
    """Where proxies (m, D) come to rest in the attraction of points (n, D); the proxies do not act on each other.

    A direct search, since minima lie on kinks: every proxy takes the best of 128 steps of fixed length, and halves
    the length when none goes down, from delta / 2 to 1e-6 delta.
    """
    one_class = torch.zeros(len(points), dtype=torch.int64)
    directions = F.normalize(torch.randn(64, starts.shape[1], generator=generator).to(starts), dim=1)
    directions = torch.cat([directions, -directions])
    places, step = starts.clone(), starts.new_full((len(starts), 1), field.delta / 2)
    potential, _ = class_potential(places, points, one_class, 0, field)
    while (moving := (step > 1e-6 * field.delta).squeeze(1)).any():
        trials = places[moving, None] + step[moving, None] * directions
        values, _ = class_potential(trials.flatten(0, 1), points, one_class, 0, field)
        values, best = values.view(trials.shape[:2]).min(1)
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
    for redraws in itertools.count():
        if redraws == 100:
            raise ValueError(f"num_proxies={num_proxies} never settled at different samples; use fewer proxies")
        starts = torch.randn(num_proxies, points.shape[1], dtype=points.dtype, generator=generator)
        starts = start_spread * points.std(0) * starts
        rest = {"PFML": equilibrium(starts, points, decaying_field(delta=delta, min_distance=delta), generator)}
        if len(torch.cdist(rest["PFML"], points).argmin(1).unique()) == num_proxies:
            break
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


def study(seeds: Iterable[int]) -> list[dict]:
    """Every case as rows: method, setting, seed, metric, value. The setting is "M=..", the number of proxies, and where
    not the hypothesis of the corollary holds also "case=.."."""
    rows, corners, numbers = [], simplex(12), (1, 2, 3, 5, 10)
    for seed in seeds:
        cloud = jittered_grid(7, torch.Generator().manual_seed(seed))
        centered = jittered_grid(7, torch.Generator().manual_seed(seed), jitter=0)
        cases = [("", cloud, 0.9 * hypothesis_limit(cloud), m, 1.0) for m in numbers]
        cases += [(";case=closer than delta", cloud, F.pdist(cloud).max().item(), m, 1.0) for m in numbers]
        cases += [(";case=a sample at the mean", centered, 0.9 * hypothesis_limit(centered), 1, 1.0)]
        cases += [(";case=simplex in 11 dimensions", corners, 0.9 * hypothesis_limit(corners), 1, 0.1)]
        for case, points, delta, m, start_spread in cases:
            for method, values in compare(points, delta, m, seed, start_spread).items():
                common = {"method": method, "setting": f"M={m}{case}", "seed": seed}
                rows += [common | {"metric": metric, "value": value} for metric, value in values.items()]
    return rows


Alignment = pfml_study(
    "12_pfml_proxy_alignment",
    parameters(
        FieldOptions,
        methods=tuple[str, ...],
        all_variants=(bool, True),
        point_sets=(Count, 5),
        protocol=str,
        search_trials=Whole,
    ),
    proxy_alignment,
    alignment_table,
    alignments_of,
    profiles={
        "*": {"methods": ("untrained", "PFML", "CPML", "SoftTriple", "ProxyNCA++", "ProxyAnchor")},
        "quick": {"methods": ("untrained", "PFML", "CPML", "SoftTriple", "ProxyAnchor")},
    },
    one_network=True,
)
