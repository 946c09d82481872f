"""What notebook 01 recommends on photographs, against test classes that the choice never saw.

    python benchmarks/choosing.py            birds, in the folder DMLREPRO_DATA; writes results/benchmarks/choosing.csv
    python benchmarks/choosing.py --splits 2 fewer splits, written nowhere

birds       random halves of the classes train, the others test
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
from PIL import Image

from dmlrepro.datasets import manifests
from dmlrepro.evidence import choosing
from dmlrepro.evidence.saving import output_folder
from dmlrepro.papers.together import recommending, your_images
from dmlrepro.training import runs

LOSSES = ("ProxyAnchor", "PFML", "Triplet", "MultiSimilarity", "ProxyNCA++", "MFCont")
STEPS = 300  # of a head, which takes a millisecond or two each
SPLITS = 20
OFTEN = 0.05  # of the splits may be worse than the features
CLASSES, IMAGES, PIXELS = 8, 8, 24  # of thumbnails


def whole(rng: np.random.Generator, _: Path) -> list[tuple[str, str, str]]:
    """(path, label, split) of all birds, half of the classes for training."""
    birds = manifests.load("cub-subset")
    train = set(rng.permutation(len(birds.class_names))[: len(birds.class_names) // 2])
    parts = ("train" if label in train else "test" for label in birds.labels)
    return [(path, birds.class_names[label], part) for path, label, part in zip(birds.images, birds.labels, parts)]


def thumbnails(rng: np.random.Generator, folder: Path) -> list[tuple[str, str, str]]:
    """IMAGES of each class, shrunk into `folder`; only CLASSES of them are for training, all others for the test."""
    birds = manifests.load("cub-subset")
    train = set(rng.permutation(len(birds.class_names))[:CLASSES])
    rows = []
    for label, name in enumerate(birds.class_names):
        for number in np.flatnonzero(birds.labels == label)[:IMAGES]:
            path = folder / f"{len(rows):05}.png"
            with Image.open(birds.images[number]) as image:
                image.convert("RGB").resize((PIXELS, PIXELS)).save(path)
            rows.append((str(path), name, "train" if label in train else "test"))
    return rows


SETS = {"birds": whole, "thumbnails": thumbnails}


def judged(name: str, split: int, folder: Path, jobs: int | None) -> dict:
    """What is recommended on a split, and the test MAP@R of it and of what it was compared with."""
    folder.mkdir()
    table = folder / "images.csv"
    with table.open("w", newline="", encoding="utf8") as file:
        csv.writer(file).writerows([("path", "label", "split"), *SETS[name](np.random.default_rng(split), folder)])
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
    final = runs.run_all([of_label[each].replace(seed=0, fold=None, folds=4) for each in best], jobs=jobs)
    scores = {each: np.array(recommending.class_scores(run)) for each, run in zip(best, final)}
    test = {each: float(np.average(rows[:, 2], weights=rows[:, 1])) for each, rows in scores.items()}
    differences = (scores[choice.chosen] - scores[choice.reference])[None, None, :, 2]
    interval = choosing.simultaneous(differences, scores[choice.chosen][:, 1])
    losses = [each for each in best if each.partition(" (")[0] in LOSSES]
    ahead = max(losses, key=lambda each: test[each])
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
        "losses_below": sum(test[each] < test[choice.reference] for each in losses),
        "losses": len(losses),
    }


def rows(splits: int, jobs: int | None) -> Iterator[dict]:
    with tempfile.TemporaryDirectory() as place:
        for name in SETS:
            for split in range(splits):
                yield (row := judged(name, split, Path(place) / f"{name}{split}", jobs))
                told = f"{row['recommended']}, test {row['test_gain']:+.1f}"
                print(f"{name}, split {split}: {told}; best loss {row['best_loss_gain']:+.1f}", flush=True)


def kept(found: list[dict]) -> bool:
    """Whether the recommended is seldom worse than the features, and thumbnails are left to these."""
    birds, small = ([row for row in found if row["set"] == name] for name in SETS)
    shares = {
        "birds, recommended below the best untrained row": np.mean([row["test_gain"] < 0 for row in birds]),
        "thumbnails, a loss recommended": np.mean([row["recommended"] != row["untrained"] for row in small]),
    }
    helped = np.mean([row["recommended"] != row["untrained"] for row in birds])
    harness.within("birds, a loss recommended: share of splits", helped)
    return all(harness.within(f"{what}: share of splits", share, most=OFTEN) for what, share in shares.items())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--splits", type=int, default=SPLITS, help=f"of each set (default: {SPLITS})")
    parser.add_argument("--jobs", type=int, help="runs side by side (default: all cores)")
    arguments = parser.parse_args()
    found = list(rows(arguments.splits, arguments.jobs))
    if arguments.splits == SPLITS:
        harness.write_table(found, output_folder("benchmarks") / "choosing.csv")
    sys.exit(not kept(found))
