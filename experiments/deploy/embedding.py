"""Image files to vectors: read ahead by threads, embedded in batches."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from experiments.deploy.models import Model
from experiments.training import batches

BATCH = 64


def embedded(model: Model, chunks: Iterable[Sequence[Path | None]]) -> Iterator[np.ndarray]:
    """The vectors (B, D) float32 of each chunk of B image files, of unit length; NaN for what cannot be embedded, see
    `reason`, and for None."""

    def read(path: Path | None) -> torch.Tensor | None:
        try:
            return None if path is None else model.read(path)
        except Exception:  # Pillow lets through whatever its readers stumble over in a damaged file
            return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for images in batches.prefetched(lambda chunk: list(pool.map(read, chunk)), zip(chunks), crops=True):
            vectors = np.full((len(images), model.dim), np.nan, np.float32)
            readable = [row for row, image in enumerate(images) if image is not None]
            if readable:
                vectors[readable] = model.vectors(torch.stack([images[row] for row in readable])).numpy()
            yield vectors


def reason(model: Model, path: Path) -> str:
    """Why an image file could not be embedded, in one line."""
    try:
        model.read(path)
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split()).replace(str(path), path.name)
    return "its embedding has no direction, or the file was not complete when it was read"
