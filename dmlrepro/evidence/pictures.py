"""What the qualitative figures show: images of a set, queries with their neighbours, a map of unseen classes."""

import numpy as np
import torch
import torch.nn.functional as F

from dmlrepro.datasets import manifests
from dmlrepro.training import batches, inference


def sample_images(
    dataset: str, classes: int, per_class: int, split: str = "train", seed: int = 0
) -> tuple[list, list[str]]:
    """(rows of per_class images, class names) of randomly drawn classes; images are uint8 (H, W) or (H, W, 3)."""
    manifest = manifests.load(dataset)
    rng = np.random.default_rng(seed)
    indices = manifest.indices(split)
    names, rows = [], []
    for label in rng.choice(np.unique(manifest.labels[indices]), classes, replace=False):
        members = indices[manifest.labels[indices] == label]
        rows.append(_pixels(manifest, rng.choice(members, per_class, replace=len(members) < per_class)))
        names.append(manifest.class_names[label])
    return rows, names


def neighbours(run, queries: int, k: int, seed: int = 0) -> tuple[list, list[list], np.ndarray]:
    """Randomly drawn test queries of a run and their k nearest gallery images by cosine similarity.

    Returns:
        (query images, for each query its k neighbour images, bool array (queries, k) of same-class neighbours).
    """
    manifest = batches.load_dataset(run.spec)
    test = manifest.indices("test")
    is_query, is_gallery = manifest.is_query[test], manifest.is_gallery[test]
    embeddings = F.normalize(run.embeddings, dim=1)
    generator = torch.Generator().manual_seed(seed)
    candidates = torch.from_numpy(np.flatnonzero(is_query))
    picked = candidates[torch.randperm(len(candidates), generator=generator)[:queries]]
    similarity = embeddings[picked] @ embeddings.T
    similarity[:, torch.from_numpy(~is_gallery)] = -torch.inf
    similarity[torch.arange(len(picked)), picked] = -torch.inf  # a query never finds itself
    found = similarity.topk(k, dim=1).indices
    labels = manifest.labels[test]
    correct = labels[found.numpy()] == labels[picked.numpy()][:, None]
    return _pixels(manifest, test[picked.numpy()]), [_pixels(manifest, test[row.numpy()]) for row in found], correct


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
    from PIL import Image

    found = []
    for index in indices:
        with Image.open(manifest.images[index]) as image:
            image.thumbnail((2 * short_side, short_side))
            found.append(np.asarray(image.convert("RGB")))
    return found
