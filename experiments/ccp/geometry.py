"""Notebooks 40 and 48: what CCP does to proxies and to the space, and what the propositions say (Figs. 2, 3, Sec. IV).

A run that ends after k problems is the beginning of one that goes on, which gives the states between the problems.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from dmlrepro import metrics
from dmlrepro.losses.chance_constrained import clip_to_unit_ball, covering_radius, greedy_k_center
from experiments.ccp.ablations import OURS, ccp_study, courses_of
from experiments.ccp.methods import CcpOptions, Level, ccp_runs, decided
from experiments.params import Count, Whole, parameters
from experiments.studies import evaluated_labels, measured, study_rows, training_embeddings, with_measures
from experiments.training import batches, records, runs
from experiments.training.spec import RunSpec


def radius(params: Any, *further: Level) -> list[RunSpec]:
    """Fig. 3: one problem to its end, CCP after each number of problems and to its end."""
    problems = [(OURS, f"problems={number}", {"projections": number}) for number in params.problems]
    return ccp_runs(params, (["C2-Proxy"], "", {}), *problems, (OURS, "", {}), *further)


def proxies_of(run: runs.RunResult, params: Any) -> list:
    return courses_of(run, params) + ([measured(run, around_proxies)] if _has_proxies(run) else [])


def radius_table(finished: Iterable[runs.RunResult], params: Any) -> pd.DataFrame:
    """The rows of the runs, the geometry of their test embeddings, and the studies of the bounds."""
    study = study_rows(params, [*bound_rows(params.point_sets), *lemma_rows(params.point_sets)])
    return pd.concat([with_measures(finished, geometries_of, params), study], ignore_index=True)


def geometries_of(run: runs.RunResult, params: Any) -> list:
    return [*courses_of(run, params), measured(run, geometry_of)]


@records.measurement("ccp.geometry")
def geometry_of(run: runs.RunResult) -> dict[str, float]:
    return geometry(run.embeddings, evaluated_labels(run)[0])


PER_CLASS = 200  # training images that are looked at: MNIST has 6,000


def _has_proxies(run: runs.RunResult) -> bool:
    return run.spec.algorithm == "chance_constrained" and not run.spec.algorithm_options.get("samples")


def _by_class(run: runs.RunResult) -> tuple[list[Tensor], Tensor]:
    """Of each trained class the first PER_CLASS training images, and of all classes the proxies (C, M, D), clipped."""
    manifest, embeddings, labels = training_embeddings(run, PER_CLASS)
    fold = run.spec.fold
    trained = labels.unique() if fold is None else batches.folds(manifest, run.spec.folds)[fold][0]
    images = [clip_to_unit_ball(embeddings[labels == label]) for label in trained.tolist()]
    return images, clip_to_unit_ball(run.loss_state()["proxies"])


@records.measurement("ccp.around_proxies")
def around_proxies(run: runs.RunResult) -> dict[str, float]:
    """How far the proxies of a class leave its images, and one another, see `_by_class`, averaged over the classes that
    were trained on."""
    images, proxies = _by_class(run)
    radii = [covering_radius(of_class, own).item() for of_class, own in zip(images, proxies)]
    number = proxies.shape[1]
    spread = torch.cdist(proxies, proxies).sum((1, 2)).mean().item() / max(number * (number - 1), 1)
    return {"covering_radius": sum(radii) / len(radii), "proxy_spread": spread}


def states(finished: Iterable[runs.RunResult], classes: int = 6) -> dict[str, Mapping[str, Tensor]]:
    """Fig. 2 of the first seed, for `planes.proxy_maps`, a panel per state: images of the first few classes, see
    `_by_class`; next proxies are those that greedy k-center picks among all of them, where training has a pool."""
    panels: dict[str, Mapping[str, Tensor]] = {}
    for run in finished:
        if run.spec.seed or not _has_proxies(run):
            continue
        images, proxies = _by_class(run)
        images, proxies = images[:classes], proxies[:classes]
        picked = [own[greedy_k_center(own[None], old[None], len(old))[0]] for own, old in zip(images, proxies)]
        points, axes = torch.cat(images), torch.eye(2)
        center = torch.zeros(2)
        if points.shape[1] > 2:  # the first two principal components
            center = points.mean(0)
            axes = torch.linalg.svd(points - center, full_matrices=False).Vh[:2].T
        title = f"CCP, {run.spec.setting.replace('problems=', 'problems: ')}" if run.spec.setting else "CCP, at its end"
        panels["single problem" if run.spec.method == "C2-Proxy" else title] = {
            "points": (points - center) @ axes,
            "labels": torch.arange(len(images)).repeat_interleave(torch.tensor([*map(len, images)])),
            "converged": (proxies - center) @ axes,
            "next": (torch.stack(picked) - center) @ axes,
        }
    return panels


def geometry(embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    """Average covering radius of the classes (Fig. 3) and mean distance between samples of two classes, on clipped
    embeddings and not on their t-SNE; radii are greedy (see the metric)."""
    points = clip_to_unit_ball(embeddings)
    radius = metrics.average_covering_radius(points, labels)
    total = count = 0.0
    for some, own in zip(points.split(1024), labels.split(1024)):
        other = own[:, None] != labels
        total += (torch.cdist(some, points) * other).sum(dtype=torch.float64).item()
        count += other.sum().item()
    return {"average_covering_radius": radius, "inter_class_distance": total / max(count, 1)}


POINTS, CLASSES, ANCHORS = 40, 5, 4  # samples of a class, classes, anchors of a class
CHOICES = ("k-center", "random", "duplicates")  # duplicates: those nearest to a random one, itself included


def bound_rows(point_sets: int) -> Iterator[dict]:
    """Proposition 2 on random clusters, a row per point set (`seed`), choice and metric.

    The loss is C2's hinge of a pair, 1-Lipschitz in each point, so that anchors weighted by the samples that they stand
    for are at most the mean distance to them, and so at most the covering radius, from the mean over all pairs (the
    proof's T1). `gap/radius` is that gap over the radius, `loss_gap` the one of Eq. 11, of equal weights.
    """
    for seed in range(point_sets):
        generator = torch.Generator().manual_seed(seed)
        centers = torch.randn(CLASSES, 1, 3, dtype=torch.float64, generator=generator)
        noise = torch.randn(CLASSES, POINTS, 3, dtype=torch.float64, generator=generator)
        points = centers + 0.5 * noise
        for choice in CHOICES:
            chosen = torch.randint(POINTS, (CLASSES, 1), generator=generator)
            start = points.gather(1, chosen[..., None].expand(-1, -1, 3))
            if choice == "k-center":
                chosen = torch.cat([chosen, greedy_k_center(points, start, ANCHORS - 1)], dim=1)
            elif choice == "random":
                chosen = torch.rand(CLASSES, POINTS, generator=generator).argsort(1)[:, :ANCHORS]
            else:
                chosen = torch.cdist(start, points)[:, 0].topk(ANCHORS, largest=False).indices
            for name, value in gaps(points, chosen).items():
                yield {"method": "anchors", "setting": f"chosen={choice}", "metric": name, "seed": seed, "value": value}


def gaps(points: Tensor, chosen: Tensor) -> dict[str, float]:
    """Covering radius of anchors (C, k) of points (C, N, D), and how far their pair loss is from that of all pairs."""
    anchors = points.gather(1, chosen[..., None].expand(-1, -1, points.shape[2]))
    everything, classes = points.flatten(0, 1), torch.arange(len(points)).repeat_interleave(points.shape[1])
    distances = torch.cdist(everything, everything)
    same = classes[:, None] == classes
    of_a_point = torch.where(same, distances, (2 - distances).relu()).mean(1)
    of_a_point = of_a_point.unflatten(0, points.shape[:2])
    radius, at_anchors = covering_radius(points, anchors).max(), of_a_point.gather(1, chosen)
    nearest = torch.cdist(points, anchors).argmin(2)
    weighted = (of_a_point - at_anchors.gather(1, nearest)).mean().abs()
    return {
        "covering_radius": radius.item(),
        "loss_gap": (of_a_point.mean() - at_anchors.mean()).abs().item(),
        "gap/radius": (weighted / radius).item(),
    }


def lemma_rows(point_sets: int) -> Iterator[dict]:
    """Lemma 1 for a linear layer: its Lipschitz constant over the printed one and over a valid one.

    The printed constant is the largest sum of |w| over the outputs that an input reaches. The proof needs
    |sum w x|^2 <= sum w^2 x^2, which w = x = (1, 1) refutes: a layer of one output and n weights 1 has the constant
    sqrt(n), and 1 is printed. Valid is the root of the largest row sum times the largest column sum.
    """
    for seed in range(point_sets):
        generator = torch.Generator().manual_seed(seed)
        weights = torch.rand(4, 4 * (seed + 1), dtype=torch.float64, generator=generator)  # outputs x inputs
        exact = torch.linalg.matrix_norm(weights, 2)
        columns, rows = weights.abs().sum(0).max(), weights.abs().sum(1).max()
        for name, constant in (("printed", columns), ("rows and columns", (rows * columns).sqrt())):
            row = {"method": "Lemma 1", "setting": f"constant={name}", "metric": "Lipschitz/constant"}
            yield row | {"seed": seed, "value": (exact / constant).item()}


# At quick the glyphs stand in for MNIST, whose test images cost a core as much as 150 steps. Nothing is searched: a
# search scores digits that it did not train on, whose features in two dimensions training only harms.
Mnist = ccp_study(
    "40_ccp_mnist",
    parameters(CcpOptions, problems=tuple[Whole, ...]),  # after so many the space is looked at
    lambda params: radius(params, (OURS, "anchors=samples", {"samples": True})),  # Fig. 2: samples for proxies, too
    decides=lambda choice: decided(choice) | {"proxies_per_class": 4, "pool_size": 16},
    profiles={
        "*": {"embedding_size": 2, "problems": (1, 2, 3, 4, 5)},
        "quick": {"embedding_size": 8, "problems": (1, 2)},
        "small": {"dataset": "mnist", "backbone": "resnetv2_20", "weights": "none", "protocol": "conventional"}
        | {"steps": 1000, "eval_every": 200, "problem_steps": 50, "samples_per_class": 4},
    },
    takes_searches=False,
    measures=proxies_of,
)


def mnist_setup() -> pd.DataFrame:
    """As `Study.setup`, beside the paper's example with MNIST (Sec. IV-A and IV-D) in place of its benchmarks."""
    setup, said = Mnist.setup(), {"data": "MNIST", "network": "resnetv2_20 from scratch", "embedding_size": "2"}
    return setup.assign(published=[said.get(name, "not reported") for name in setup.index])


Radius = ccp_study(
    "48_ccp_covering_radius",
    # point_sets: random sets of the studies without images
    parameters(CcpOptions, problems=tuple[Whole, ...], point_sets=(Count, 20)),
    radius,
    radius_table,
    measures=geometries_of,
    profiles={"*": {"problems": (1, 2, 3, 4)}, "quick": {"problems": (1, 2)}},
)
