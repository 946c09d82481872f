"""Notebook 01: which of the losses suits the reader's images, or do the pretrained features alone?

Candidates are the features as they are, their principal components, plain and whitened, and every loss in a few
settings: a linear head that begins at the whitened components, or the tail of the network behind which such a head
stands, with fewer steps and lower rates beside the full ones. They are compared on classes that are held out of the
training part, which the seeds take turns in; recommending.py says who is recommended. No step at all is one of the
settings: it is the whitened components. The test classes are scored once, by the final fit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd

from experiments import papers
from experiments.across import recommending, unlabelled
from experiments.across.recommending import SCORE, UNTRAINED
from experiments.analysis import results, summaries
from experiments.analysis.stored import Numbers
from experiments.datasets import images, manifests
from experiments.methods import Method, pick, spec_of
from experiments.params import Params
from experiments.profiles import recipe_of
from experiments.study import Study
from experiments.training import protocols
from experiments.training.runs import RunResult
from experiments.training.spec import HEAD_STARTS, RunSpec

FOLDS = 4  # parts of the training classes, of which each is held out in turn
OF_A_FOLD = 8  # classes that a part should have: among fewer, images are found too easily
METRICS = (SCORE, "val R@1")  # that the table keeps


class Attempt(NamedTuple):
    """One way to train with a loss: of the network "head" alone or "tail", what `train_from` says; a share of the
    steps; a factor of all learning rates."""

    part: str
    steps: float = 1.0
    rate: float = 1.0


ATTEMPTS = {
    "head briefly": Attempt("head", steps=0.25),
    "head": Attempt("head"),
    "tail briefly": Attempt("tail", steps=0.25),
    "tail gently": Attempt("tail", rate=0.1),
    "tail": Attempt("tail"),
}


@dataclass(frozen=True)
class OwnImagesParams(Params):
    """What notebooks that train on a reader's images have in common."""

    paper = "together"
    positive: ClassVar = ("head_lr",)

    methods: tuple[str, ...] | None = None
    head_lr: float = 0.001  # of the head
    embedding_scale: float = 0.0  # of nivMF's distances, see NivmfParams; 0: what its room knows for the backbone

    def _dataset_recipe(self, dataset: str) -> dict[str, Any]:
        """All that are offered, of the embedded glyphs a few. For the reader's images also batches and a head that fit
        into the smallest training part, and four seeds, which take turns in the parts that are held out. Without labels
        the offer is smaller, and a seed is enough to look at."""
        own = _fitting(dataset, self.profile) if manifests.is_own(dataset) else {}
        if unlabelled.is_without_labels(dataset):
            return own | {"methods": unlabelled.METHODS, "seeds": 1}
        few = {"methods": ("untrained", "ProxyAnchor", "PFML", "EL-nivMF", "MFCWMS")} if dataset == "glyphs" else {}
        return {"methods": tuple(offered())} | few | own


@dataclass(frozen=True)
class YourImagesParams(OwnImagesParams):
    """The parameters of notebook 01."""

    notebook = "01_your_images"
    overrides: ClassVar = {
        "quick": {"train_from": "head", "steps": 40, "attempts": ("head briefly", "head")},
        "small": {"attempts": ("head", "tail briefly", "tail gently", "tail")},
        "paper": {
            "train_from": "head",
            "steps": 1000,
            "epochs": 0,
            "warmup_epochs": 0.0,
            "attempts": ("head briefly", "head"),
        },
    }

    attempts: tuple[str, ...] | None = None
    head_start: str = "whitened"  # where the head of a loss begins: "whitened" or "pca" components, or "random"

    def _refuse_nonsense(self) -> None:
        super()._refuse_nonsense()
        if self.head_start not in (*HEAD_STARTS, "random"):
            raise ValueError(f"head_start must be one of {', '.join(HEAD_STARTS)}, random, got {self.head_start!r}")
        for name in self.attempts or ():
            if name not in ATTEMPTS:
                raise ValueError(f"attempts: unknown {name!r}; choose among {', '.join(ATTEMPTS)}")


def offered() -> dict[str, Method]:
    """The methods of all rooms that can be tried on a reader's images, by name."""
    return {name: method for name, method in papers.methods().items() if method.offered}


def _training_sizes(dataset: str) -> np.ndarray:
    """How many images each training class has."""
    manifest = manifests.load(dataset)
    return np.bincount(manifest.labels[manifest.indices("train")])


def _fitting(dataset: str, profile: str) -> dict[str, int]:
    """The profile's batches, made smaller for few images, and of more images per class for few classes; and as many
    dimensions as few images have."""
    sizes = _training_sizes(dataset)
    folds = folds_of(sizes)
    held_out = np.array_split(np.arange(len(sizes)), folds) if folds else [np.arange(0)]
    kept = [np.delete(sizes, part) for part in held_out]
    recipe = recipe_of(profile, dataset)
    fewest = int(min(part.sum() for part in kept))
    size = min(recipe["batch_size"], fewest)
    per_class = max(min(recipe["samples_per_class"] or 4, size), -(-size // min(len(part) for part in kept)))
    return {
        "batch_size": size - size % per_class,
        "samples_per_class": per_class,
        "embedding_size": max(1, min(recipe["embedding_size"], fewest - 1)),
        "seeds": FOLDS,
    }


def folds_of(sizes: np.ndarray) -> int:
    """Into how many parts training classes of these sizes are cut; 0: none can be held out.

    A part should have OF_A_FOLD classes; two parts are made of fewer. It has at least two classes, and one of them two
    images, or there is nothing to retrieve in it.
    """
    for folds in range(min(FOLDS, max(len(sizes) // OF_A_FOLD, 2), len(sizes) // 2), 1, -1):
        if all((part > 1).any() for part in np.array_split(sizes, folds)):
            return folds
    return 0


def your_images(params: YourImagesParams) -> list[RunSpec]:
    """All candidates with every seed; the features alone where no class can be held out to compare them on. Without
    labels what needs none, once."""
    if unlabelled.is_without_labels(params.dataset or ""):
        start = None if params.head_start == "random" else params.head_start
        untrained = [_without_training(name, params, 0, {}) for name in UNTRAINED]
        return untrained + unlabelled.trained(params, params.methods or (), start)
    losses = [method for method in pick(offered(), params.methods) if method.loss]
    if not held_out_of(params, 0):
        return [spec_of(offered()["untrained"], params)]
    specs = []
    for seed in range(params.seeds):
        held_out = held_out_of(params, seed)
        specs += [_without_training(name, params, seed, held_out) for name in UNTRAINED]
        for method in losses:
            tried = [_trained(method, ATTEMPTS[name], params, seed, held_out) for name in params.attempts or ()]
            specs += {spec.setting: spec for spec in tried}.values()  # without a tail some attempts are the same
    return specs


def held_out_of(params: OwnImagesParams, seed: int) -> dict[str, Any]:
    """The fields of a RunSpec that hold a part of the training classes out; none where they are too few."""
    folds = FOLDS
    if manifests.is_own(params.dataset):
        folds = folds_of(_training_sizes(params.dataset))
    return {"fold": seed % folds, "folds": folds} if folds else {}


def _without_training(name: str, params: YourImagesParams, seed: int, held_out: dict[str, Any]) -> RunSpec:
    projected: dict[str, Any] = {}
    if start := UNTRAINED[name]:
        projected = {"embedding_size": params.embedding_size, "head_start": start, "train_from": "head"}
    return spec_of(offered()["untrained"], params, seed, **held_out, **projected).replace(method=name)


def _trained(
    method: Method, attempt: Attempt, params: YourImagesParams, seed: int, held_out: dict[str, Any]
) -> RunSpec:
    """The run of a method. A head alone takes a method's options for training from scratch, whatever the trunk."""
    changes: dict[str, Any] = {"head_start": None if params.head_start == "random" else params.head_start}
    if attempt.part == "head" or params.train_from == "head":
        changes |= {"train_from": "head", "cached_views": None, "head_lr": params.head_lr}
        changes |= {"loss_options": method.from_scratch}
    budget = "steps" if params.steps else "epochs"
    amount = max(1, round(getattr(params, budget) * attempt.steps))
    spec = spec_of(method, params, seed, **held_out, **changes).replace(**{budget: amount})
    setting = f"part={spec.train_from or 'all'};{budget}={amount}"
    if attempt.rate == 1:
        return spec.replace(setting=setting)
    slower = {name: rate * attempt.rate for name, rate in spec.loss_lr.items()}
    head_lr = spec.head_lr and spec.head_lr * attempt.rate
    rates = {"lr": spec.lr * attempt.rate, "head_lr": head_lr, "loss_lr": slower}
    return spec.replace(setting=f"{setting};rate={attempt.rate:g}", **rates)


def measures(run: RunResult, params: YourImagesParams) -> list[protocols.Scored]:
    """The scores of each held-out class are on record when the run is."""
    if run.spec.fold is not None:
        recommending.class_scores(run)
    return []


def table_of(finished: Iterable[RunResult], params: YourImagesParams) -> pd.DataFrame:
    """The tidy table: scores on held-out classes, and of the features alone where there are none on test classes. A
    run's fold is no model of an ensemble here, so each enters by itself. Without labels nothing is scored, and the
    table says what training left of the neighbours that the features have."""
    finished = list(finished)
    if unlabelled.is_without_labels(params.dataset or ""):
        return results.tidy(unlabelled.rows_of(finished), params)
    table = results.tidy(
        [protocols.Scored(run.spec.replace(fold=None), run.dataset, run.rows) for run in finished], params
    )
    held_out = table[table["metric"].isin(METRICS)]
    shown = held_out if len(held_out) else table[table["metric"].isin(["MAP@R", "R@1"])]
    return shown.reset_index(drop=True)


def seconds(finished: Iterable[RunResult]) -> pd.DataFrame:
    """Mean seconds of a run by method, and optimisation steps per second, the fastest first."""
    costs = results.costs(finished).groupby(["method", "setting"])
    return summaries.readable(costs[["seconds", "steps_per_second"]].mean().sort_values("seconds"), 1)


# the data


def describe(dataset: str) -> None:
    """Print what `data check` prints, and what of it will be felt."""
    print(manifests.check(dataset))
    manifest = manifests.load(dataset)
    if manifests.is_own(dataset):
        print(images.survey(manifest))
    if not manifest.labelled:
        return
    sizes = _training_sizes(dataset)
    if alone := [manifest.class_names[label] for label in np.flatnonzero(sizes == 1)]:
        print(
            f"WARNING: {len(alone)} training classes have one image, where losses on pairs find no pair: {_few(alone)}"
        )
    if not folds_of(sizes):
        print(f"WARNING: {len(sizes)} training classes are too few to hold some out; nothing can be compared")
    elif len(sizes) < 20:
        print(f"WARNING: {len(sizes)} training classes are few; intervals will be wide")


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + ", ..." * (len(names) > 5)


# --- what was found ---------------------------------------------------------------------------------------------------


def _best_of_both(numbers: Numbers) -> str:
    untrained, losses = _ranked(numbers)
    reference, best = untrained[0], losses[0]
    return (
        f"On held-out classes {_named(best)} has the largest mean of {len(_methods(losses))} losses, and "
        f"{_named(reference)} that of what needs no training: {numbers.against(best, reference, SCORE)}."
    )


def _untrained_rows(numbers: Numbers) -> str:
    untrained, losses = _ranked(numbers)
    told = ", ".join(f"{_named(name)} {numbers.mean(name, SCORE):.1f}" for name in untrained)
    return f"Without training: {told} {SCORE}; {len(losses)} trained settings have {_span(numbers, losses)}."


def _span(numbers: Numbers, cells: list[str]) -> str:
    least, most = (numbers.mean(cell, SCORE) for cell in (cells[-1], cells[0]))
    return f"{least:.1f} to {most:.1f}"


def _ranked(numbers: Numbers) -> tuple[list[str], list[str]]:
    """Cells of the untrained rows and of the losses, the best first."""
    rows = numbers.table[numbers.table["metric"] == SCORE]
    cells = dict.fromkeys(f"{method};{setting}".rstrip(";") for method, setting in zip(rows["method"], rows["setting"]))
    untrained = [cell for cell in cells if cell in UNTRAINED]
    return numbers.ranked(untrained, SCORE), numbers.ranked([cell for cell in cells if cell not in UNTRAINED], SCORE)


def _methods(cells: list[str]) -> set[str]:
    return {cell.partition(";")[0] for cell in cells}


def _named(cell: str) -> str:
    method, _, setting = cell.partition(";")
    return recommending.label(method, setting)


def _kept_neighbours(numbers: Numbers) -> str:
    kept = unlabelled.KEPT
    methods = numbers.table.loc[numbers.table["metric"] == kept, "method"].unique()
    shares = [
        f"{_named(name)} {100 * numbers.mean(name, kept):.0f} %" for name in methods if name != recommending.FEATURES
    ]
    if not shares:
        return ""
    return f"Of the {unlabelled.NEAREST} nearest images under the features are still so near under {', '.join(shares)}."


FINDINGS = (_best_of_both, _untrained_rows, _kept_neighbours)
YourImages = Study(YourImagesParams, your_images, table_of, measures, findings=FINDINGS)
