"""Find the images of a folder that are nearest to yours, with a network that notebook 01 has saved.

    python examples/search_images.py NETWORK.safetensors FOLDER IMAGE... [-k 5]

Prints a line per image found: query, rank, cosine similarity, path. FOLDER may be flat or nested, sorted or not; its
embeddings are made anew in each call. A query that lies in FOLDER finds itself first.
"""

import argparse
import itertools
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from experiments.datasets.own_images import SUFFIXES
from experiments.training import network_files
from experiments.training.network_files import SavedNetwork

BATCH = 64


def embedded(saved: SavedNetwork, paths: Iterable[Path]) -> tuple[list[Path], np.ndarray]:
    """The image files that can be read, and their embeddings; the others are named."""
    readable, parts, rest = [], [], iter(paths)
    while chunk := list(itertools.islice(rest, BATCH)):
        pixels = {}
        for path in chunk:
            try:
                pixels[path] = network_files.read(path, saved.about)
            except Exception as error:  # Pillow lets through whatever its readers stumble over in a damaged file
                print(f"left out: {path} ({error})", file=sys.stderr)
        if pixels:
            readable += pixels
            parts.append(network_files.embed(saved, list(pixels.values())))
    if not readable:
        sys.exit("no image that can be read")
    return readable, np.concatenate(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("network", type=Path, help="a .safetensors file of notebook 01")
    parser.add_argument("folder", type=Path, help="images at any depth")
    parser.add_argument("images", type=Path, nargs="+", help="image files to search for")
    parser.add_argument("-k", type=int, default=5, help="how many are printed for each (default: 5)")
    options = parser.parse_args()
    saved = network_files.load(options.network)
    paths = (path for path in options.folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    gallery, points = embedded(saved, sorted(paths))
    queries, asked = embedded(saved, options.images)
    for query, similarities in zip(queries, asked @ points.T):
        for rank, row in enumerate(np.argsort(-similarities, kind="stable")[: options.k], 1):
            print(f"{query} {rank} {similarities[row]:.3f} {gallery[row]}")


if __name__ == "__main__":
    main()
