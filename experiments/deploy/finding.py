"""What lies near in an index: for every query image the k images whose vectors have the largest inner product."""

import csv
import importlib.util
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import torch

from experiments.datasets.layouts import few
from experiments.deploy import embedding, indexing
from experiments.deploy.folders import Image, listed
from experiments.deploy.indexing import Index

QUERIES, ROWS = 1024, 2**15  # vectors whose products are made at once
COLUMNS = ("query", "rank", "path", "label", "distance")


@dataclass(frozen=True)
class Found:
    """The images of an index that lie nearest to queries, the nearest first.

    queries: Q paths; rows: (Q, k) which images of the index; distances: (Q, k) 1 - cosine similarity, in [0, 2];
    unreadable: queries that could not be embedded, with the reason.
    """

    index: Index
    queries: list[Path]
    rows: np.ndarray
    distances: np.ndarray
    unreadable: list[str]

    def image(self, row: int) -> Image:
        return self.index.images[row]

    def write_csv(self, file: TextIO) -> None:
        """A line for each image found; paths of the index count from its folder."""
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for query, rows, distances in zip(self.queries, self.rows, self.distances):
            for rank, (row, distance) in enumerate(zip(rows, distances), 1):
                image = self.image(row)
                table.writerow([query, rank, image.path, image.label, f"{distance:.4f}"])


def find(place: str | Path, images: Iterable[str | Path], k: int = 10) -> Found:
    """Search an index for image files, and for all that lie in folders, which are listed as `folders.listed` does.

    Raises:
        FileNotFoundError: no index, or no file at a path.
        ValueError: k < 1, no query that can be read, or what `open_index` raises. k beyond the index gives all of it.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    index = indexing.open_index(place)
    paths = list(itertools.chain.from_iterable(map(_files, map(Path, images))))
    model = index.model()
    chunks = [paths[first : first + embedding.BATCH] for first in range(0, len(paths), embedding.BATCH)]
    vectors = np.concatenate(list(embedding.embedded(model, chunks)))
    fine = ~np.isnan(vectors[:, 0])
    bad = [f"{path}: {embedding.reason(model, path)}" for path, good in zip(paths, fine) if not good]
    if not fine.any():
        raise ValueError(f"none of the {len(paths)} query images can be read: {few(bad)}")
    rows, products = nearest(vectors[fine], index.vectors, min(k, len(index.images)))
    queries = [path for path, good in zip(paths, fine) if good]
    return Found(index, queries, rows, np.clip(1 - products, 0, 2), bad)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return [path / image.path for image in listed(path)[0]]
    if not path.is_file():
        raise FileNotFoundError(f"no image {path}")
    return [path]


def nearest(queries: np.ndarray, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest inner products of each query (Q, D) with vectors (N, D), exact in float32: (rows, products), both
    (Q, k), descending, equal ones by row. With faiss where it is installed, else by torch in blocks.
    """
    search = _faiss if importlib.util.find_spec("faiss") else blockwise
    rows, products = search(queries, vectors, k)
    order = np.lexsort((rows, -products), axis=1)
    return np.take_along_axis(rows, order, 1), np.take_along_axis(products, order, 1)


def _faiss(queries: np.ndarray, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    import faiss

    products, rows = faiss.knn(np.asarray(queries), np.asarray(vectors), k, metric=faiss.METRIC_INNER_PRODUCT)
    return rows, products


def blockwise(queries: np.ndarray, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """`nearest` by torch, in no order; memory is O(QUERIES x ROWS)."""
    parts: list[Sequence[torch.Tensor]] = []
    for some in torch.from_numpy(queries).split(QUERIES):
        best = torch.empty(len(some), 0)
        rows = torch.empty(len(some), 0, dtype=torch.int64)
        for first in range(0, len(vectors), ROWS):
            block = torch.from_numpy(np.array(vectors[first : first + ROWS]))  # a copy: mapped memory is read-only
            products, places = (some @ block.T).topk(min(k, len(block)), dim=1)
            best, order = torch.cat([best, products], 1).topk(min(k, best.shape[1] + products.shape[1]), dim=1)
            rows = torch.cat([rows, places + first], 1).gather(1, order)
        parts.append((rows, best))
    rows, products = (torch.cat(tensors).numpy() for tensors in zip(*parts))
    return rows, products
