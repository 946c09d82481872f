"""Notebook 02: a trained network is kept, embeds a folder of images, and finds what lies near others.

The images that it embeds and searches with are those of the test part, as files: the
first one of each class is a query, the others are searched.
"""

import dataclasses
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from PIL import Image

from experiments.across.recommending import SCORE
from experiments.across.your_images import OwnImagesParams, held_out_of, offered
from experiments.analysis import results
from experiments.analysis.stored import Numbers
from experiments.datasets import manifests
from experiments.datasets.images import decoded
from experiments.deploy.finding import Found
from experiments.files import atomic_write, cache_root
from experiments.methods import Method, pick, spec_of
from experiments.study import Study
from experiments.training import protocols
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec

GALLERY, QUERIES = "gallery", "queries"


@dataclass(frozen=True)
class SearchYourImagesParams(OwnImagesParams):
    """The parameters of notebook 02: one method and one seed where nothing is said."""

    notebook = "02_search_your_images"
    overrides: ClassVar = {
        "quick": {"train_from": "head", "steps": 100, "seeds": 1},
        "small": {"seeds": 1},
        "paper": {"train_from": "head", "steps": 1000, "epochs": 0, "warmup_epochs": 0.0, "seeds": 1},
    }

    def _dataset_recipe(self, dataset: str) -> dict[str, Any]:
        return super()._dataset_recipe(dataset) | {"methods": ("untrained", "Contrastive")}


def search_your_images(params: SearchYourImagesParams) -> list[RunSpec]:
    """The network's features as they are, and what `train_from` says trained with each method from a drawn head."""
    return [
        spec_of(method, params, seed, **held_out_of(params, seed), **(_head(method, params) if method.loss else {}))
        for method in pick(offered(), params.methods)
        for seed in range(params.seeds)
    ]


def _head(method: Method, params: SearchYourImagesParams) -> dict[str, Any]:
    """A head alone is trained from scratch: it takes a method's options for that, whatever the trunk."""
    if params.train_from != "head":
        return {}
    return {"train_from": "head", "head_lr": params.head_lr, "loss_options": method.from_scratch}


def table_of(finished: Iterable[RunResult], params: SearchYourImagesParams) -> pd.DataFrame:
    """The rows of the runs. A run's fold is no model of an ensemble here, so each enters by itself."""
    return results.tidy(
        [protocols.Scored(run.spec.replace(fold=None), run.dataset, run.rows) for run in finished], params
    )


def winner(finished: Iterable[RunResult], table: pd.DataFrame) -> RunResult:
    """The run of seed 0 of the trained method with the largest mean MAP@R on held-out classes, or on the test classes
    where none could be held out."""
    metric = SCORE if SCORE in set(table["metric"]) else "MAP@R"
    rows = table[(table["metric"] == metric) & (table["method"] != "untrained")]
    best = rows.groupby("method")["value"].mean().idxmax()
    return next(run for run in finished if run.spec.method == best)


def place_of(run: RunResult) -> Path:
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
            with atomic_write(path) as temporary:  # one that was cut short would count as there
                Image.fromarray(image).save(temporary, format="png")
        else:
            os.symlink(image, path)


def right(answer: Found) -> np.ndarray:
    """bool (Q, k): whether an image that was found lies in a folder of the query's folder's name."""
    names = [query.parent.name for query in answer.queries]
    return np.array([[answer.image(row).label == name for row in rows] for name, rows in zip(names, answer.rows)])


def in_words(answer: Found) -> None:
    """Print for how many queries the nearest image is of their class."""
    first = right(answer)[:, 0]
    print(
        f"Of {len(first)} queries among {len(answer.index.images)} images the nearest is of the query's class for "
        f"{first.sum()} ({100 * first.mean():.1f} %)."
    )


def some(answer: Found, count: int) -> Found:
    """What was found for `count` of the queries, evenly spread over all."""
    rows = np.linspace(0, len(answer.queries) - 1, min(count, len(answer.queries))).round().astype(int)
    queries = [answer.queries[row] for row in rows]
    return dataclasses.replace(answer, queries=queries, rows=answer.rows[rows], distances=answer.distances[rows])


def pictures(answer: Found) -> tuple[list[np.ndarray], list[list[np.ndarray]], np.ndarray]:
    """What was found for `figures.images.retrieved`."""
    paths = [[answer.index.folder / answer.image(row).path for row in rows] for rows in answer.rows]
    return [_pixels(query) for query in answer.queries], [[*map(_pixels, nearest)] for nearest in paths], right(answer)


def as_table(answer: Found) -> pd.DataFrame:
    """What was found as the CSV that `python -m experiments find` prints, without the folders of the queries."""
    rows = [
        (f"{query.parent.name}/{query.name}", rank, answer.image(row).path, round(float(distance), 3))
        for query, neighbours, distances in zip(answer.queries, answer.rows, answer.distances)
        for rank, (row, distance) in enumerate(zip(neighbours, distances), 1)
    ]
    return pd.DataFrame(rows, columns=["query", "rank", "path", "distance"]).set_index(["query", "rank"])


def _pixels(path: Path) -> np.ndarray:
    return np.asarray(decoded(str(path), upright=True))


def _against_features(numbers: Numbers) -> str:
    losses = [method for method in numbers.methods if method != "untrained"]
    best = numbers.ranked(losses, least=1)[0]
    return f"On classes never seen in training: {numbers.against(best, 'untrained')} of the features as they are."


SearchYourImages = Study(SearchYourImagesParams, search_your_images, table_of, findings=(_against_features,))
