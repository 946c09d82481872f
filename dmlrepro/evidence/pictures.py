"""What the qualitative figures show: images of a set, queries with their neighbours, a map of unseen classes."""

from collections import Counter

import numpy as np
import torch
import torch.nn.functional as F

from dmlrepro.datasets import manifests
from dmlrepro.datasets.images import decoded
from dmlrepro.training import batches, inference


def sample_images(
    dataset: str, classes: int, per_class: int, split: str = "train", seed: int = 0
) -> tuple[list, list[str]]:
    """(rows of images, class names) of at most `classes` randomly drawn classes; images are uint8 (H, W) or (H, W, 3).

    A class with fewer than per_class images shows some of them again.
    """
    manifest = manifests.load(dataset)
    rng = np.random.default_rng(seed)
    indices = manifest.indices(split)
    names, rows = [], []
    present = np.unique(manifest.labels[indices])
    for label in rng.choice(present, min(classes, len(present)), replace=False):
        members = indices[manifest.labels[indices] == label]
        rows.append(_pixels(manifest, rng.choice(members, per_class, replace=len(members) < per_class)))
        names.append(manifest.class_names[label])
    return rows, names


def neighbours(run, queries: int, k: int, seed: int = 0) -> tuple[list, list[list], np.ndarray]:
    """Randomly drawn test queries of a run and their k nearest gallery images by cosine similarity, fewer where the
    gallery is smaller.

    Returns:
        (query images, for each query its k neighbour images, bool array (queries, k) of same-class neighbours).
    """
    manifest = batches.load_dataset(run.spec)
    test = manifest.indices("test")
    generator = torch.Generator().manual_seed(seed)
    candidates = torch.from_numpy(np.flatnonzero(manifest.is_query[test]))
    picked = candidates[torch.randperm(len(candidates), generator=generator)[:queries]]
    found = _nearest(run, manifest, test, picked, k)
    labels = manifest.labels[test]
    correct = labels[found.numpy()] == labels[picked.numpy()][:, None]
    return _pixels(manifest, test[picked.numpy()]), [_pixels(manifest, test[row.numpy()]) for row in found], correct


def confusions(run, pairs: int, examples: int = 3) -> tuple[list[list[tuple]], list[tuple[str, str, str]]]:
    """The test classes whose images most often have a nearest neighbour of a certain other class.

    Returns:
        (for each pair of classes at most `examples` (query image, its nearest gallery image), and for each pair the
        query's class, the neighbour's and the share as "7 of 24"). Both are empty where nothing was confused.
    """
    manifest = batches.load_dataset(run.spec)
    test = manifest.indices("test")
    labels = manifest.labels[test]
    queries = np.flatnonzero(manifest.is_query[test])
    chunks = torch.from_numpy(queries).split(1024)
    found = np.concatenate([_nearest(run, manifest, test, chunk, 1)[:, 0].numpy() for chunk in chunks])
    searched, took = labels[queries], labels[found]
    of_class = np.bincount(searched, minlength=labels.max() + 1)
    wrong = Counter(zip(searched[searched != took].tolist(), took[searched != took].tolist()))
    rows, names = [], []
    # by count, then by labels, so that equal counts have one order on every machine
    for (label, other), count in sorted(wrong.items(), key=lambda item: (-item[1], item[0]))[:pairs]:
        members = np.flatnonzero((searched == label) & (took == other))[:examples]
        images = [_pixels(manifest, test[which[members]]) for which in (queries, found)]
        rows.append(list(zip(*images)))
        names.append((manifest.class_names[label], manifest.class_names[other], f"{count} of {of_class[label]}"))
    return rows, names


def _nearest(run, manifest: manifests.Manifest, test: np.ndarray, queries: torch.Tensor, k: int) -> torch.Tensor:
    """Positions (Q, at most k) among the test images of the gallery images most similar to the queries (Q,)."""
    embeddings = F.normalize(run.embeddings, dim=1)
    is_gallery = torch.from_numpy(manifest.is_gallery[test])
    similarity = embeddings[queries] @ embeddings.T
    similarity[:, ~is_gallery] = -torch.inf
    similarity[torch.arange(len(queries)), queries] = -torch.inf  # a query never finds itself
    others = int(is_gallery.sum() - is_gallery[queries].any().int())
    return similarity.topk(max(1, min(k, others)), dim=1).indices


def class_map(run, classes: int, per_class: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray, list]:
    """t-SNE of test embeddings of randomly drawn classes, at most `classes`: (xy (n, 2), names (n,), images)."""
    from dmlrepro.evidence import plots

    manifest = batches.load_dataset(run.spec)
    test = manifest.indices("test")
    labels = manifest.labels[test]
    rng = np.random.default_rng(seed)
    present = np.unique(labels)
    shown = rng.choice(present, min(classes, len(present)), replace=False)
    members = np.concatenate([np.flatnonzero(labels == label)[:per_class] for label in shown])
    xy = plots.tsne(F.normalize(run.embeddings[members], dim=1), seed=seed)
    names = np.array([manifest.class_names[label] for label in labels[members]])
    return xy, names, _pixels(manifest, test[members])


def by_norm(run, count: int, classes: int = 4, split: str = "test", seed: int = 0) -> tuple[list[list], list[str]]:
    """Images of a split in the order of their embedding norm, for `plots.samples`: (rows of `count` images, row names).

    Two rows with the smallest and the largest norms of all, then randomly drawn classes, each from its smallest to its
    largest norm in even steps.
    """
    manifest = batches.load_dataset(run.spec)
    indices = manifest.indices(split)
    embeddings = inference.embed_images(run.spec, run.network(), manifest, indices)
    norms, labels = embeddings.norm(dim=1).numpy(), manifest.labels[indices]
    order = norms.argsort()
    chosen = [order[:count], order[-count:]]
    names = ["smallest norms of all", "largest norms of all"]
    for label in np.random.default_rng(seed).choice(np.unique(labels), classes, replace=False):
        members = order[labels[order] == label]
        chosen.append(members[np.linspace(0, len(members) - 1, min(count, len(members))).round().astype(int)])
        names.append(manifest.class_names[label])
    return [_pixels(manifest, indices[members]) for members in chosen], names


def _pixels(manifest: manifests.Manifest, indices: np.ndarray, short_side: int = 64) -> list[np.ndarray]:
    """Small images for a figure; only the asked ones are decoded."""
    if isinstance(manifest.images, np.ndarray):
        return [manifest.images[index] for index in indices]
    own, found = manifests.is_own(manifest.name), []
    for index in indices:
        image = decoded(manifest.images[index], upright=own)
        image.thumbnail((2 * short_side, short_side))
        found.append(np.asarray(image))
    return found
