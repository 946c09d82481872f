"""Figures of images: those of a set, queries with their neighbours, a map of unseen classes; and what they show of a
data set or of a finished run. Images are uint8 (H, W) or (H, W, 3)."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import nn

from experiments.datasets import manifests
from experiments.datasets.images import decoded
from experiments.figures.style import WIDTH, described, listed, panels, plain
from experiments.training import batches, inference
from experiments.training.runs import RunResult

RIGHT, WRONG = "#1B8A3A", "#C1272D"
Rows = list[list[np.ndarray]]


def sample_images(dataset: str, classes: int, per_class: int) -> tuple[Rows, list[str]]:
    """At most `classes` randomly drawn training classes for `samples`: (rows of images, class names)."""
    manifest = manifests.load(dataset)
    rng, indices = np.random.default_rng(0), manifest.indices("train")
    names, rows = [], []
    present = np.unique(manifest.labels[indices])
    for label in rng.choice(present, min(classes, len(present)), replace=False):
        members = indices[manifest.labels[indices] == label]
        rows.append(thumbnails(manifest, rng.choice(members, per_class, replace=len(members) < per_class)))
        names.append(manifest.class_names[label])
    return rows, names


def by_norm(run: RunResult, count: int, split: str = "test") -> tuple[Rows, list[str]]:
    """Images of a split in the order of their embedding norm, for `samples`: (rows of `count` images, row names): the
    smallest and the largest norms of all, then four drawn classes, each from its smallest to its largest norm."""
    manifest = batches.load_dataset(run.spec)
    indices = manifest.indices(split)
    embeddings = inference.embed_images(run.spec, run.network(), manifest, indices)
    norms, labels = embeddings.norm(dim=1).numpy(), manifest.labels[indices]
    order = norms.argsort()
    chosen = [order[:count], order[-count:]]
    names = ["smallest norms of all", "largest norms of all"]
    for label in np.random.default_rng(0).choice(np.unique(labels), 4, replace=False):
        members = order[labels[order] == label]
        chosen.append(members[np.linspace(0, len(members) - 1, min(count, len(members))).round().astype(int)])
        names.append(manifest.class_names[label])
    return [thumbnails(manifest, indices[members]) for members in chosen], names


def neighbours(
    run: RunResult, queries: int, k: int, network: nn.Module | None = None
) -> tuple[list[np.ndarray], Rows, np.ndarray]:
    """Randomly drawn test queries of a run and their k nearest gallery images by cosine similarity, fewer where the
    gallery is smaller, for `retrieved`: (queries, for each query its k neighbours, bool (queries, k) of same class).
    network: which embeds the images; None: the run's."""
    manifest = batches.load_dataset(run.spec)
    test, generator = manifest.indices("test"), torch.Generator().manual_seed(0)
    candidates = torch.from_numpy(np.flatnonzero(manifest.is_query[test]))
    picked = candidates[torch.randperm(len(candidates), generator=generator)[:queries]]
    embeddings = inference.embed_images(run.spec, network, manifest, test) if network is not None else run.embeddings
    embeddings, is_gallery = F.normalize(embeddings, dim=1), torch.from_numpy(manifest.is_gallery[test])
    similarity = (embeddings[picked] @ embeddings.T).masked_fill(~is_gallery, -torch.inf)
    similarity[torch.arange(len(picked)), picked] = -torch.inf  # a query never finds itself
    others = int(is_gallery.sum() - is_gallery[picked].any().int())
    nearest = similarity.topk(max(1, min(k, others)), dim=1).indices.numpy()
    labels = manifest.labels[test]
    correct = labels[nearest] == labels[picked.numpy()][:, None]
    return thumbnails(manifest, test[picked.numpy()]), [thumbnails(manifest, test[row]) for row in nearest], correct


def thumbnails(manifest: manifests.Manifest, indices: np.ndarray) -> list[np.ndarray]:
    if isinstance(manifest.images, np.ndarray):
        return [manifest.images[index] for index in indices]
    images = [decoded(manifest.images[index], upright=manifests.is_own(manifest.name)) for index in indices]
    for image in images:
        image.thumbnail((128, 64))
    return [np.asarray(image) for image in images]


def samples(rows: Sequence[Sequence], names: Sequence[str]) -> Figure:
    """Images of some classes, a row per class with its name on at most three lines."""
    wrapped = [plain(textwrap.fill(name, 24, max_lines=3, placeholder=" …")) for name in names]
    cells = [[(x, image, None) for x, image in enumerate(row)] for row in rows]
    return described(_wall(cells, wrapped, left=2.6), f"Images, a row per class: {listed(names)}.")


def retrieved(queries: Sequence, neighbours: Sequence[Sequence], correct: np.ndarray) -> Figure:
    """Q queries in the first column, then their K nearest gallery images in order: green frame and tick for the same
    class, red frame and cross for another, as `correct` (Q, K) says."""
    count, k = len(queries), len(neighbours[0])
    places = 1.25 + np.arange(k)
    cells = [[(0, query, None), *zip(places, row, right)] for query, row, right in zip(queries, neighbours, correct)]
    figure = _wall(cells, heads={0: "query"} | {x: f"{place}" for place, x in enumerate(places, 1)})
    return described(figure, f"{count} query images, each with its {k} nearest images, right or wrong.")


def _wall(
    rows: Sequence[Sequence[tuple]],
    names: Sequence[str] = (),
    heads: Mapping[float, str] | None = None,
    left: float = 0.0,
) -> Figure:
    """Rows of thumbnails in unit cells: (x, image, whether it is right; None: a query); names stand on the left, heads
    {x: title} above."""
    width, height, top = 1 + max(x for row in rows for x, *_ in row), len(rows), 0.35 if heads else 0.0
    cell = min(0.86, WIDTH / (width + left))
    with panels(1, cell * (height + top), width=cell * (width + left)) as (figure, (axis,)):
        axis.set(xlim=(-left, width), ylim=(height, -top), aspect="equal")
        axis.axis("off")
        for x, title in (heads or {}).items():
            axis.text(x + 0.5, -0.1, title, ha="center", fontsize="small")
        for y, name in enumerate(names):
            axis.text(-0.15, y + 0.5, name, ha="right", va="center", fontsize="small")
        for y, row in enumerate(rows):
            for x, image, right in row:
                _thumbnail(axis, x, y, image, right)
    return figure


def _thumbnail(axis: Axes, x: float, y: float, image: np.ndarray, right: bool | None) -> None:
    pixels = np.squeeze(image)  # grey images may have a last axis of one channel
    height, width = np.array(pixels.shape[:2]) / max(pixels.shape[:2]) * 0.88
    left, top = x + (1 - width) / 2, y + (1 - height) / 2
    extent = (left, left + width, top + height, top)
    axis.imshow(pixels, extent=extent, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    if right is not None:
        shade, mark = (RIGHT, "✓") if right else (WRONG, "✗")
        axis.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=shade, linewidth=2.5))
        box = {"boxstyle": "round,pad=0.12", "facecolor": shade, "edgecolor": "none"}
        axis.text(left + width, top, mark, ha="right", va="top", color="white", fontsize=9, weight="bold", bbox=box)
