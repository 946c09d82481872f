"""Notebook 01: which of the losses suits the reader's images, or do the pretrained features alone?

Candidates are the pretrained features, their principal components, plain and whitened, and every loss in the settings
of ATTEMPTS. They are compared on classes that are held out of the training part, which the seeds take turns in. The
test classes are scored once, by the final fit.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import special

from experiments import papers, studies
from experiments.analysis import results, statistics
from experiments.checks import refuse_unknown
from experiments.datasets import manifests
from experiments.figures import comparisons
from experiments.figures.style import Names
from experiments.methods import Method, pick, spec_of
from experiments.params import Choice, Number, Params, Positive
from experiments.profiles import recipe_of
from experiments.study import Study
from experiments.training import batches, protocols, records, runs
from experiments.training.spec import RunSpec

FOLDS = 4  # parts of the training classes, of which each is held out in turn
OF_A_FOLD = 8  # classes that a part should have: among fewer, images are found too easily
SCORE = "val MAP@R"
COUNTS = 0.5  # points of it that a loss has to gain to be recommended, as in the claims
UNTRAINED = {"untrained": None, "PCA": "pca", "whitened PCA": "whitened"}  # where their heads begin
# the head alone, or what `train_from` says; for a share of the steps, at a factor of all rates
ATTEMPTS = {
    "head briefly": ("head", 0.25, 1.0),
    "head": ("head", 1.0, 1.0),
    "tail briefly": ("tail", 0.25, 1.0),
    "tail gently": ("tail", 1.0, 0.1),
    "tail": ("tail", 1.0, 1.0),
}


class YourImagesParams(Params):
    """The parameters of notebook 01."""

    methods: tuple[str, ...]
    attempts: tuple[str, ...]
    head_lr: Positive = 0.001
    embedding_scale: Number = 0.0  # of nivMF's distances, see NivmfParams; 0: that of nivmf/methods.py for the backbone


def decided(choice: Choice) -> dict[str, Any]:
    """All methods that are offered, of the embedded glyphs a few; for the reader's images also what `_fitting` says."""
    own = _fitting(choice.dataset, choice.profile) if manifests.is_own(choice.dataset) else {}
    few = ("untrained", "ProxyAnchor", "PFML", "EL-nivMF", "MFCWMS")
    return {"methods": few if choice.dataset == "glyphs" else tuple(offered())} | own


def offered() -> dict[str, Method]:
    """The methods of all papers that can be tried on a reader's images, by name."""
    return {name: method for name, method in papers.methods().items() if method.offered}


def _fitting(dataset: str, profile: str) -> dict[str, int]:
    """The profile's batches, smaller for few images, with more per class for few classes; as many dimensions as fit."""
    parts, recipe = parts_of(dataset), recipe_of(profile, dataset)
    of_parts = [int(part.sum()) for part in parts], [len(part) for part in parts]
    images, classes = (sum(numbers) - max(numbers) for numbers in of_parts)  # without the largest part
    size = min(recipe["batch_size"], images)
    per_class = max(min(recipe["samples_per_class"] or 4, size), -(-size // classes))
    return {
        "batch_size": size - size % per_class,
        "samples_per_class": per_class,
        "embedding_size": min(recipe["embedding_size"], images - 1),
        "seeds": FOLDS,
    }


def parts_of(dataset: str) -> list[np.ndarray]:
    """Numbers of images of the reader's training classes, in FOLDS parts that are held out in turn; in fewer, two at
    least, where a part would have fewer than OF_A_FOLD classes. ValueError where nothing could be retrieved in one."""
    manifest = manifests.load(dataset)
    sizes = np.bincount(manifest.labels[manifest.indices("train")])
    parts = np.array_split(sizes, min(FOLDS, max(len(sizes) // OF_A_FOLD, 2)))
    if any(len(part) < 2 or part.max() < 2 for part in parts):
        raise ValueError(
            f"{dataset}: {len(sizes)} training classes of {sizes.min()} to {sizes.max()} images are too few to hold "
            f"out {len(parts)} parts in turn, each of two classes or more and with two images of one; add some"
        )
    return parts


def your_images(params: YourImagesParams) -> list[RunSpec]:
    """All candidates with every seed."""
    refuse_unknown("unknown attempt", params.attempts, ATTEMPTS)
    losses = [method for method in pick(offered(), params.methods) if method.loss]
    folds = len(parts_of(params.dataset)) if manifests.is_own(params.dataset) else FOLDS
    specs = []
    for seed in range(params.seeds):
        held_out: dict[str, Any] = {"fold": seed % folds, "folds": folds}
        for name, start in UNTRAINED.items():
            head = {"head_start": start, "train_from": "head", "embedding_size": params.embedding_size} if start else {}
            specs.append(spec_of(offered()["untrained"], params, seed, **held_out | head).replace(method=name))
        for method in losses:
            tried = [_trained(method, name, params, seed, **held_out) for name in params.attempts]
            specs += {spec.setting: spec for spec in tried}.values()  # without a tail some attempts are the same
    return specs


def _trained(method: Method, attempt: str, params: YourImagesParams, seed: int, **changes: Any) -> RunSpec:
    """The run of a method. A head alone takes a method's options for training from scratch, whatever the trunk."""
    part, share, factor = ATTEMPTS[attempt]
    changes["head_start"] = "whitened"
    if part == "head" or params.train_from == "head":
        alone = {"train_from": "head", "cached_views": None, "head_lr": params.head_lr}
        changes |= alone | {"loss_options": method.from_scratch}
    budget = "steps" if params.steps else "epochs"
    changes[budget] = max(1, round(getattr(params, budget) * share))
    spec = spec_of(method, params, seed, **changes)
    slower = f";rate={factor:g}" if factor != 1 else ""
    return spec.replace(
        setting=f"part={spec.train_from or 'all'};{budget}={changes[budget]}{slower}",
        lr=spec.lr * factor,
        head_lr=spec.head_lr and spec.head_lr * factor,
        loss_lr={name: rate * factor for name, rate in spec.loss_lr.items()},
    )


def measures(run: runs.RunResult, params: YourImagesParams) -> list[protocols.Scored]:
    """The scores of each class are on record when the run is."""
    class_scores(run)
    return []


def table_of(finished: Iterable[runs.RunResult], params: YourImagesParams) -> pd.DataFrame:
    """Scores on held-out classes; a run's fold is no model of an ensemble here."""
    alone = [protocols.Scored(run.spec.replace(fold=None), run.dataset, run.rows) for run in finished]
    table = results.tidy(alone, params)
    return table[table["metric"].isin([SCORE, "val R@1"])].reset_index(drop=True)


def label(spec: RunSpec) -> str:
    """A candidate as tables call it: "PFML (part=fire6, steps=25)", "PCA"."""
    return f"{spec.method} ({spec.setting.replace(';', ', ')})" if spec.setting else spec.method


def class_scores(run: runs.RunResult) -> list[list[float]]:
    """[class, queries, R@1, MAP@R] of every class that a finished run is scored on, as fractions: those that are held
    out of its training, or without such the test classes."""
    return records.derived([run], _class_scores)


@records.measurement("class_scores")
def _class_scores(run: runs.RunResult) -> list[list[float]]:
    manifest = batches.load_dataset(run.spec)
    if run.spec.fold is None:
        return runs.per_class(run.embeddings, manifest, manifest.indices("test"))
    train = manifest.indices("train")
    held_out = train[np.isin(manifest.labels[train], batches.folds(manifest, run.spec.folds)[run.spec.fold][1])]
    return runs.per_class(studies.embedded(run, manifest, held_out), manifest, held_out, among_all=True)


def compared(finished: Iterable[runs.RunResult]) -> pd.DataFrame:
    """A row per candidate, the best first: its mean SCORE over held-out classes, a class being its mean over seeds, and
    its difference to the best of what needs no training, paired by class, in points.

    `low` and `high` are Student's t intervals over classes, 95 % for all settings of all losses together (Bonferroni),
    because the best of many is picked on noise otherwise. The variance of a mean also has what seeds differ more than
    their classes explain, pooled over the losses. Of the losses whose interval lies above 0 and whose difference is at
    least COUNTS the best is `recommended`; else, and with fewer than MIN_SEEDS classes, what needs no training.
    """
    scored = [
        (label(run.spec), run.spec.method, run.spec.seed, class_id, 100 * value)
        for run in finished
        for class_id, *_, value in class_scores(run)
    ]
    rows = pd.DataFrame(scored, columns=["candidate", "method", "seed", "class", SCORE])
    scores = rows.pivot_table(SCORE, ["seed", "class"], "candidate")
    table = pd.DataFrame({"method": rows.groupby("candidate")["method"].first()})
    table[SCORE] = scores.groupby("class").mean().mean()
    table = table.sort_values(SCORE, ascending=False, kind="stable")
    trained = ~table["method"].isin(UNTRAINED)
    reference = trained.index[~trained][0]
    gains = scores[table.index].sub(scores[reference], axis=0)
    by_class, by_seed = gains.groupby("class").mean(), gains.groupby("seed")
    unexplained = (by_seed.mean().var() - (by_seed.var() / by_seed.count()).mean())[trained].mean() / by_seed.ngroups
    variance = by_class.var() / len(by_class) + trained * max(0.0, np.nan_to_num(unexplained))
    half = special.stdtrit(len(by_class) - 1, 1 - statistics.LEVEL / max(trained.sum(), 1) / 2) * np.sqrt(variance)
    table["reference"], table["classes"], table["difference"] = reference, len(by_class), by_class.mean()
    table["low"], table["high"] = table["difference"] - half, table["difference"] + half
    better = trained & (table["low"] > 0) & (table["difference"] >= COUNTS) & (len(by_class) >= statistics.MIN_SEEDS)
    table["recommended"] = table.index == (better.idxmax() if better.any() else reference)
    return table


def best_of_each(table: pd.DataFrame) -> pd.DataFrame:
    """Of `compared` what is recommended, and every method at the best of its settings."""
    return table[table["recommended"] | ~table["method"].duplicated()]


def figure(table: pd.DataFrame) -> Figure:
    """The differences of `best_of_each` with their intervals."""
    (reference, classes), names = table[["reference", "classes"]].iloc[0], papers.names()
    effects = best_of_each(table).drop(index=reference)[["difference", "low", "high"]].T.to_dict("list")
    grey = Names({**names.colors, **dict.fromkeys(UNTRAINED, names.color("untrained"))})
    measured = f"{SCORE} over {classes} held-out classes, 95 % intervals for all together"
    return comparisons.gains(effects, reference, measured, names=grey)


def final_specs(table: pd.DataFrame, finished: Sequence[runs.RunResult]) -> list[RunSpec]:
    """The runs on all training classes: the recommended first, then what it is compared with, and plain features."""
    specs = {label(run.spec): run.spec for run in finished if run.spec.seed == 0}
    wanted = dict.fromkeys((table["recommended"].idxmax(), table["reference"].iloc[0], "untrained"))
    return [specs[name].replace(fold=None, folds=RunSpec.folds) for name in wanted]


def tested(final: Sequence[runs.RunResult]) -> pd.DataFrame:
    """MAP@R and R@1 of the final fits on the test classes, and what the first gains over each in MAP@R."""
    rows = {}
    for run in final:
        gain = [100 * (one[-1] - other[-1]) for one, other in zip(class_scores(final[0]), class_scores(run))]
        scores = {name: 100 * run.metric(name) for name in ("MAP@R", "R@1")}
        scores |= dict(zip(("difference", "low", "high"), (float(np.mean(gain)), *statistics.t_interval(gain))))
        rows[label(run.spec)] = scores
    return pd.DataFrame.from_dict(rows, orient="index")


YourImages = Study(
    "01_your_images",
    YourImagesParams,
    your_images,
    table_of,
    measures,
    decides=decided,
    takes_searches=False,  # those of committed sets looked at the classes that are held out here
    profiles={
        "*": {"attempts": ("head briefly", "head")},
        "quick": {"train_from": "head", "steps": 40},
        "small": {"attempts": ("head", "tail briefly", "tail gently", "tail")},
        "paper": {"train_from": "head", "steps": 1000, "epochs": 0, "warmup_epochs": 0.0},
    },
)
