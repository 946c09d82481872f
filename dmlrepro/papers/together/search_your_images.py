"""Notebook 02: a network of notebook 01 is kept, embeds a folder of images, and finds what lies near others.

Its runs are runs of notebook 01. The images that it embeds and searches with are those of the test part, as files: the
first one of each class is a query, the others are searched.
"""

import dataclasses
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
from PIL import Image

from dmlrepro.datasets import manifests
from dmlrepro.datasets.images import decoded
from dmlrepro.deploy.finding import Found
from dmlrepro.evidence.stored import Numbers
from dmlrepro.files import cache_root
from dmlrepro.papers.notebook import Notebook
from dmlrepro.papers.together import your_images
from dmlrepro.papers.together.your_images import YourImagesParams
from dmlrepro.training.spec import RunSpec

GALLERY, QUERIES = "gallery", "queries"


@dataclass(frozen=True)
class SearchYourImagesParams(YourImagesParams):
    """The parameters of notebook 02: those of notebook 01, with one method and one seed where nothing is said."""

    notebook = "02_search_your_images"
    overrides: ClassVar = {
        profile: YourImagesParams.overrides.get(profile, {}) | {"seeds": 1} for profile in ("quick", "small", "paper")
    }

    def _dataset_recipe(self, dataset: str) -> dict:
        return super()._dataset_recipe(dataset) | {"methods": ("untrained", "Contrastive")}


def search_your_images(params: SearchYourImagesParams) -> list[RunSpec]:
    """Runs of notebook 01: the network's features as they are, and what is trained with each method."""
    return your_images.your_images(params)


def table_of(finished: Iterable, params: SearchYourImagesParams) -> pd.DataFrame:
    """The rows of the runs."""
    return your_images.table_of(finished, params)


def place_of(run) -> Path:
    """A folder in the cache for what is made of a run."""
    return cache_root() / "search" / run.key


def as_files(dataset: str, folder: Path) -> None:
    """The test images of a data set in `folder`/gallery and `folder`/queries, each in a folder per class; links where
    they are files already."""
    manifest = manifests.load(dataset)
    seen: set[int] = set()
    for index in manifest.indices("test"):
        label, image = int(manifest.labels[index]), manifest.images[index]
        part = GALLERY if label in seen else QUERIES
        seen.add(label)
        suffix = ".png" if isinstance(image, np.ndarray) else Path(image).suffix
        path = folder / part / manifest.class_names[label].replace("/", "_") / f"{index}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            continue
        if isinstance(image, np.ndarray):
            Image.fromarray(image).save(path)
        else:
            os.symlink(image, path)


def right(found: Found) -> np.ndarray:
    """bool (Q, k): whether an image that was found lies in a folder of the query's folder's name."""
    names = [query.parent.name for query in found.queries]
    return np.array([[found.image(row).label == name for row in rows] for name, rows in zip(names, found.rows)])


def in_words(found: Found) -> None:
    """Print for how many queries the nearest image is of their class."""
    first = right(found)[:, 0]
    print(
        f"Of {len(first)} queries among {len(found.index.images)} images the nearest is of the query's class for "
        f"{first.sum()} ({100 * first.mean():.1f} %)."
    )


def some(found: Found, count: int) -> Found:
    """What was found for `count` of the queries, evenly spread over all."""
    rows = np.linspace(0, len(found.queries) - 1, min(count, len(found.queries))).round().astype(int)
    queries = [found.queries[row] for row in rows]
    return dataclasses.replace(found, queries=queries, rows=found.rows[rows], distances=found.distances[rows])


def pictures(found: Found) -> tuple[list[np.ndarray], list[list[np.ndarray]], np.ndarray]:
    """What was found for `figures.images.retrieved`."""
    paths = [[found.index.folder / found.image(row).path for row in rows] for rows in found.rows]
    return [_pixels(query) for query in found.queries], [[*map(_pixels, each)] for each in paths], right(found)


def as_table(found: Found) -> pd.DataFrame:
    """What was found as the CSV that `python -m dmlrepro find` prints, without the folders of the queries."""
    rows = [
        (f"{query.parent.name}/{query.name}", rank, found.image(row).path, round(float(distance), 3))
        for query, each, distances in zip(found.queries, found.rows, found.distances)
        for rank, (row, distance) in enumerate(zip(each, distances), 1)
    ]
    return pd.DataFrame(rows, columns=["query", "rank", "path", "distance"]).set_index(["query", "rank"])


def _pixels(path: Path) -> np.ndarray:
    return np.asarray(decoded(str(path), upright=True))


def _against_features(numbers: Numbers) -> str:
    losses = [method for method in numbers.methods if method != "untrained"]
    best = numbers.ranked(losses, least=1)[0]
    return f"On classes never seen in training: {numbers.against(best, 'untrained')} of the features as they are."


NOTEBOOKS = [Notebook(SearchYourImagesParams, search_your_images, table_of, findings=(_against_features,))]
