"""What notebook 01 recommends on photographs, against test classes that the choice never saw.

    python benchmarks/choosing.py            an hour; writes results/benchmarks/choosing.csv, and goes on where it was
                                             stopped; birds lie in the folder DMLREPRO_DATA
    python benchmarks/choosing.py --splits 2 fewer splits, written nowhere

birds       dozens of classes, drawn anew for each split, a half to train and a half to test
thumbnails  a few classes of a few birds train, shrunk to a few pixels: what a head learns of them does harm

Six losses of different kinds train a head behind SqueezeNet, as notebook 01 does at the profile small without a tail.
Test classes are scored with the recommended row, with the best untrained one, and, to see what there was to gain, with
every loss at its best setting. The exit status is 1 if more than one split in twenty recommends what is below the best
untrained row on the test classes, or anything but an untrained row on thumbnails.
"""

import argparse
import csv
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import harness
import numpy as np
import pandas as pd
from PIL import Image

from experiments.across import recommending, your_images
from experiments.analysis import choosing
from experiments.analysis.saving import output_folder
from experiments.datasets import manifests
from experiments.training import runs

LOSSES = ("ProxyAnchor", "PFML", "Triplet", "MultiSimilarity", "ProxyNCA++", "MFCont")
STEPS = 300  # of a head, which takes a millisecond or two each
OFTEN = 0.05  # of the splits may be worse than the features
Row = tuple[str, str, str]  # path, label, split


def birds(rng: np.random.Generator, _: Path) -> list[Row]:
    """As many classes and images as somebody may have sorted."""
    return _drawn(rng, train=60, test=60, images=15)


def thumbnails(rng: np.random.Generator, folder: Path) -> list[Row]:
    """Few of both, shrunk into `folder`."""
    rows = []
    for path, label, part in _drawn(rng, train=8, test=40, images=8):
        small = folder / f"{len(rows):05}.png"
        with Image.open(path) as image:
            image.convert("RGB").resize((24, 24)).save(small)
        rows.append((str(small), label, part))
    return rows


def _drawn(rng: np.random.Generator, train: int, test: int, images: int) -> list[Row]:
    """The first so many images of randomly drawn classes of all that there are."""
    all_birds = manifests.load("cub-subset")
    classes = rng.permutation(len(all_birds.class_names))[: train + test]
    rows = []
    for number, label in enumerate(classes):
        part = "train" if number < train else "test"
        for index in np.flatnonzero(all_birds.labels == label)[:images]:
            rows.append((all_birds.images[index], all_birds.class_names[label], part))
    return rows


SETS = {"birds": (birds, 20), "thumbnails": (thumbnails, 5)}  # and splits of each


def judged(name: str, split: int, folder: Path, jobs: int | None) -> dict:
    """What is recommended on a split, and the test MAP@R of it and of what it was compared with."""
    folder.mkdir()
    table = folder / "images.csv"
    with table.open("w", newline="", encoding="utf8") as file:
        csv.writer(file).writerows([("path", "label", "split"), *SETS[name][0](np.random.default_rng(split), folder)])
    params = your_images.YourImagesParams.from_values(
        {
            "profile": "small",
            "dataset": f"manifest:{table}",
            "methods": list(LOSSES),
            "steps": STEPS,
            "train_from": "head",
            "attempts": ["head briefly", "head"],
        }
    )
    finished = runs.run_all(your_images.your_images(params), jobs=jobs)
    choice = recommending.choice_of(finished)
    assert choice is not None, f"{name}: too few classes"
    of_label = {recommending.label(run.spec.method, run.spec.setting): run.spec for run in finished}
    best = recommending.best_of_each(choice)
    final = runs.run_all([of_label[candidate].replace(seed=0, fold=None, folds=4) for candidate in best], jobs=jobs)
    scores = {candidate: np.array(recommending.class_scores(run)) for candidate, run in zip(best, final)}
    test = {candidate: float(np.average(rows[:, 2], weights=rows[:, 1])) for candidate, rows in scores.items()}
    differences = (scores[choice.chosen] - scores[choice.reference])[None, None, :, 2]
    interval = choosing.simultaneous(differences, scores[choice.chosen][:, 1])
    losses = [candidate for candidate in best if candidate.partition(" (")[0] in LOSSES]
    ahead = max(losses, key=lambda loss: test[loss])
    return {
        "set": name,
        "split": split,
        "training_classes": choice.classes,
        "test_classes": len(scores[choice.chosen]),
        "recommended": choice.chosen,
        "untrained": choice.reference,
        "held_out_gain": choice.means[choice.chosen] - choice.means[choice.reference],
        "test_MAP@R": test[choice.chosen],
        "test_gain": test[choice.chosen] - test[choice.reference],
        "low": float(interval.low[0]),
        "high": float(interval.high[0]),
        "best_loss": ahead,
        "best_loss_gain": test[ahead] - test[choice.reference],
        "losses_below": sum(test[loss] < test[choice.reference] for loss in losses),
        "losses": len(losses),
    }


def rows(known: list[dict], splits: int | None, jobs: int | None) -> Iterator[dict]:
    """The row of every split, of those that are known as it is."""
    of_split = {(row["set"], row["split"]): row for row in known}
    with tempfile.TemporaryDirectory() as place:
        for name, (_, usual) in SETS.items():
            for split in range(splits or usual):
                row = of_split.get((name, split)) or judged(name, split, Path(place) / f"{name}{split}", jobs)
                told = f"{row['recommended']}, test {row['test_gain']:+.1f}"
                print(f"{name}, split {split}: {told}; best loss {row['best_loss_gain']:+.1f}", flush=True)
                yield row


def kept(splits: list[dict]) -> bool:
    """Whether the recommended is seldom worse than the features, and thumbnails are left to these."""
    many, small = ([row for row in splits if row["set"] == name] for name in SETS)
    shares = {
        "birds, recommended below the best untrained row": np.mean([row["test_gain"] < 0 for row in many]),
        "thumbnails, a loss recommended": np.mean([row["recommended"] != row["untrained"] for row in small]),
    }
    helped = np.mean([row["recommended"] != row["untrained"] for row in many])
    harness.within("birds, a loss recommended: share of splits", helped)
    return all(harness.within(f"{what}: share of splits", share, most=OFTEN) for what, share in shares.items())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--splits", type=int, help="of each set (default: 20 of birds, 5 of thumbnails)")
    parser.add_argument("--jobs", type=int, help="runs side by side (default: all cores)")
    parser.add_argument("--again", action="store_true", help="also the splits that choosing.csv has")
    arguments = parser.parse_args()
    table = output_folder("benchmarks") / "choosing.csv"
    known = (
        pd.read_csv(table).to_dict("records") if table.exists() and not (arguments.splits or arguments.again) else []
    )
    splits = []
    for row in rows(known, arguments.splits, arguments.jobs):
        splits.append(row)
        if arguments.splits is None and row not in known:
            known.append(row)
            harness.write_table(known, table)  # stopped and started again, it goes on
    sys.exit(not kept(splits))
