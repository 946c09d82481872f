"""Notebook 01: which of the losses suits the reader's images, or do the pretrained features alone?

Candidates are the pretrained features, their principal components, plain and whitened, and every loss in the settings
of ATTEMPTS. They are compared on classes that are held out of the training part, which the seeds take turns in. The
test classes are scored once, by the final fit. Without labels nothing is recommended: the reader looks at the
neighbours that each candidate finds. The one number that needs no labels is how many neighbours it leaves as they were.
"""

import typing
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pydantic import model_validator
from scipy import special
from torch import nn
from torch.nn.functional import normalize

from dmlrepro import retrieval
from experiments import papers, studies
from experiments.analysis import results, statistics
from experiments.datasets import manifests
from experiments.figures import comparisons, images
from experiments.figures.style import Names
from experiments.methods import Method, pick, spec_of
from experiments.params import Choice, Number, Params, Positive
from experiments.plm.methods import NEIGHBOURS
from experiments.plm.retrieval import Retrieval
from experiments.profiles import recipe_of
from experiments.study import Study
from experiments.training import batches, inference, network_files, protocols, records, runs
from experiments.training.spec import HEAD_STARTS, RunSpec

FOLDS = 4  # parts of the training classes, of which each is held out in turn
OF_A_FOLD = 8  # classes that a part should have: among fewer, images are found too easily
SCORE = "val MAP@R"
COUNTS = 0.5  # points of it that a loss has to gain to be recommended, as in the claims
UNTRAINED = {"untrained": None, "PCA": "pca", "whitened PCA": "whitened"}  # where their heads begin
UNLABELLED = ("PLM", "STML-style", "K-Means")  # similarity from pieces, from neighbours of neighbours, from clusters
LEAST = 40  # training images without labels: fewer make no batches of neighbours
KEPT, NEAREST = "kept_neighbours", 5  # of so many neighbours
ATTEMPTS = ("head briefly", "head", "tail briefly", "tail gently", "tail")  # the head alone, or what `train_from` says
HOW = {"": (1.0, 1.0), "briefly": (0.25, 1.0), "gently": (1.0, 0.1)}  # a share of the steps, a factor of all rates


class YourImagesParams(Params):
    """The parameters of notebook 01."""

    methods: tuple[str, ...]
    attempts: tuple[str, ...]
    head_start: str = "whitened"  # where the head of a loss begins: "whitened" or "pca" components, or "random"
    head_lr: Positive = 0.001
    embedding_scale: Number = 0.0  # of nivMF's distances, see NivmfParams; 0: that of nivmf/methods.py for the backbone

    @model_validator(mode="after")
    def _known(self) -> typing.Self:
        if self.head_start not in (*HEAD_STARTS, "random"):
            raise ValueError(f"head_start must be one of {', '.join(HEAD_STARTS)}, random, got {self.head_start!r}")
        if unknown := [name for name in self.attempts if name not in ATTEMPTS]:
            raise ValueError(f"attempts: unknown {unknown[0]!r}; choose among {', '.join(ATTEMPTS)}")
        return self


def decided(choice: Choice) -> dict[str, Any]:
    """All methods that are offered, of the embedded glyphs a few; for the reader's images also what fits them, see
    `_fitting`. Without labels the offer is smaller, and a seed is enough to look at."""
    own = _fitting(choice.dataset, choice.profile) if manifests.is_own(choice.dataset) else {}
    if is_without_labels(choice.dataset):
        return own | {"methods": UNLABELLED, "seeds": 1}
    few = ("untrained", "ProxyAnchor", "PFML", "EL-nivMF", "MFCWMS")
    return {"methods": few if choice.dataset == "glyphs" else tuple(offered())} | own


def is_without_labels(dataset: str) -> bool:
    """Whether a data set has no labels; only the reader's own images can have none."""
    return manifests.is_own(dataset) and not manifests.load(dataset).labelled


def offered() -> dict[str, Method]:
    """The methods of all papers that can be tried on a reader's images, by name."""
    return {name: method for name, method in papers.methods().items() if method.offered}


def _training_sizes(dataset: str) -> np.ndarray:
    """Number of images per training class."""
    manifest = manifests.load(dataset)
    return np.bincount(manifest.labels[manifest.indices("train")])


def _fitting(dataset: str, profile: str) -> dict[str, int]:
    """The profile's batches, made smaller for few images, and of more images per class for few classes; and as many
    dimensions as few images have."""
    sizes, recipe = _training_sizes(dataset), recipe_of(profile, dataset)
    folds = folds_of(sizes)
    held_out = np.array_split(np.arange(len(sizes)), folds) if folds else [np.arange(0)]
    kept = [np.delete(sizes, part) for part in held_out]
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
    """Into how many parts training classes of these sizes are cut; 0: none can be held out. A part should have
    OF_A_FOLD classes; two parts are made of fewer. It needs two classes, and two images of one, to retrieve any."""
    for folds in range(min(FOLDS, max(len(sizes) // OF_A_FOLD, 2), len(sizes) // 2), 1, -1):
        if all((part > 1).any() for part in np.array_split(sizes, folds)):
            return folds
    return 0


def your_images(params: YourImagesParams) -> list[RunSpec]:
    """All candidates with every seed; the features alone where no class can be held out. Without labels what needs
    none, once."""
    if is_without_labels(params.dataset):
        return [_without_training(name, params) for name in UNTRAINED] + _unlabelled(params)
    losses = [method for method in pick(offered(), params.methods) if method.loss]
    folds = folds_of(_training_sizes(params.dataset)) if manifests.is_own(params.dataset) else FOLDS
    if not folds:
        return [spec_of(offered()["untrained"], params)]
    specs = []
    for seed in range(params.seeds):
        held_out = {"fold": seed % folds, "folds": folds}
        specs += [_without_training(name, params, seed, **held_out) for name in UNTRAINED]
        for method in losses:
            tried = [_trained(method, name, params, seed, **held_out) for name in params.attempts]
            specs += {spec.setting: spec for spec in tried}.values()  # without a tail some attempts are the same
    return specs


def _unlabelled(params: YourImagesParams) -> list[RunSpec]:
    """One run of each method at the settings of notebook 50, none on too few images. What the reader gave counts here
    as well, where notebook 50 has such a parameter."""
    images = len(manifests.load(params.dataset).indices("train"))
    if images < LEAST:
        return []
    usual = Retrieval.configured({"profile": params.profile, "dataset": params.dataset})
    group = 2 * NEIGHBOURS  # a head has groups of so many
    given = [name for name, origin in params.origins.items() if origin == "reader" and hasattr(usual, name)]
    fitting = {
        "seeds": 1,
        "embedding_size": params.embedding_size,
        "batch_size": min(usual.batch_size, images // group * group),
        "clusters": min(usual.clusters, images // NEIGHBOURS),
        **{name: getattr(params, name) for name in given},
        "methods": params.methods,
    }
    start = None if params.head_start == "random" else params.head_start
    specs = Retrieval.specs(Retrieval.configured(fitting))
    return [spec.replace(head_start=start) for spec in specs if not spec.setting]


def _without_training(name: str, params: YourImagesParams, seed: int = 0, **changes: Any) -> RunSpec:
    if start := UNTRAINED[name]:
        changes |= {"embedding_size": params.embedding_size, "head_start": start, "train_from": "head"}
    return spec_of(offered()["untrained"], params, seed, **changes).replace(method=name)


def _trained(method: Method, attempt: str, params: YourImagesParams, seed: int, **changes: Any) -> RunSpec:
    """The run of a method. A head alone takes a method's options for training from scratch, whatever the trunk."""
    part, _, how = attempt.partition(" ")
    share, factor = HOW[how]
    changes["head_start"] = None if params.head_start == "random" else params.head_start
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
    """The scores of each held-out class are on record when the run is."""
    if run.spec.fold is not None:
        class_scores(run)
    return []


def table_of(finished: Iterable[runs.RunResult], params: YourImagesParams) -> pd.DataFrame:
    """Scores on held-out classes, and of the features alone where there are none on test classes; a run's fold is no
    model of an ensemble here. Without labels it says what training left of the features' neighbours."""
    finished = list(finished)
    if is_without_labels(params.dataset):
        scored = []
        for run in finished:
            kept = records.derived([run, finished[0]], _kept)
            row = {"selection": "last", "step": run.spec.steps or 0, "metric": KEPT, "value": kept}
            scored.append(protocols.Scored(run.spec, run.dataset, [row]))
        return results.tidy(scored, params)
    alone = [protocols.Scored(run.spec.replace(fold=None), run.dataset, run.rows) for run in finished]
    table = results.tidy(alone, params)
    held_out = table["metric"].isin([SCORE, "val R@1"])
    return table[held_out if held_out.any() else table["metric"].isin(["MAP@R", "R@1"])].reset_index(drop=True)


def _kept(run: runs.RunResult, first: runs.RunResult) -> float:
    """How many of the NEAREST neighbours of a test image are those of the first run, a share."""
    k = min(NEAREST, len(run.embeddings) - 1)
    ours, theirs = (retrieval.nearest(side.embeddings, k) for side in (run, first))
    return (ours[:, :, None] == theirs[:, None]).any(2).double().mean().item()


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
    """A row per candidate, if classes were held out, the best first: its mean SCORE over them, a class being its mean
    over seeds, and its difference to the best of what needs no training, paired by class, in points.

    `low` and `high` are Student's t intervals over classes, 95 % for all settings of all losses together (Bonferroni),
    because the best of many is picked on noise otherwise. The variance of a mean also has what seeds differ more than
    their classes explain, pooled over the losses. Of the losses whose interval lies above 0 and whose difference is at
    least COUNTS the best is `recommended`; else, and with fewer than MIN_SEEDS classes, what needs no training.
    """
    scored = [
        (label(run.spec), run.spec.method, run.spec.seed, class_id, 100 * value)
        for run in finished
        if run.spec.fold is not None
        for class_id, *_, value in class_scores(run)
    ]
    rows = pd.DataFrame(scored, columns=["candidate", "method", "seed", "class", SCORE])
    scores = rows.pivot_table(SCORE, ["seed", "class"], "candidate")
    table = pd.DataFrame({"method": rows.groupby("candidate")["method"].first()})
    table[SCORE] = scores.groupby("class").mean().mean()
    table = table.sort_values(SCORE, ascending=False, kind="stable")
    if table.empty:
        return table
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
    return table if table.empty else table[table["recommended"] | ~table["method"].duplicated()]


def figure(table: pd.DataFrame) -> Figure | None:
    """The differences of `best_of_each` with their intervals; None where nothing was compared."""
    if table.empty:
        return None
    (reference, classes), names = table[["reference", "classes"]].iloc[0], papers.names()
    effects = best_of_each(table).drop(index=reference)[["difference", "low", "high"]].T.to_dict("list")
    grey = Names({**names.colors, **dict.fromkeys(UNTRAINED, names.color("untrained"))})
    measured = f"{SCORE} over {classes} held-out classes, 95 % intervals for all together"
    return comparisons.gains(effects, reference, measured, names=grey)


def final_specs(table: pd.DataFrame, finished: Sequence[runs.RunResult]) -> list[RunSpec]:
    """The runs on all training classes: the recommended first, then what it is compared with and the features as they
    are. Where nothing was held out, all runs are such already."""
    specs = {label(run.spec): run.spec for run in finished if run.spec.seed == 0}
    if table.empty:
        return list(specs.values())
    wanted = dict.fromkeys((table["recommended"].idxmax(), table["reference"].iloc[0], "untrained"))
    return [specs[name].replace(fold=None, folds=RunSpec.folds) for name in wanted]


def tested(final: Sequence[runs.RunResult]) -> pd.DataFrame:
    """MAP@R and R@1 of the final fits on the test classes, and the difference of the first to each in MAP@R as in
    `compared`; empty without labels."""
    rows = {}
    for run in final if final[0].rows else ():
        gain = [100 * (one[-1] - other[-1]) for one, other in zip(class_scores(final[0]), class_scores(run))]
        scores = {name: 100 * run.metric(name) for name in ("MAP@R", "R@1")}
        scores |= dict(zip(("difference", "low", "high"), (float(np.mean(gain)), *statistics.t_interval(gain))))
        rows[label(run.spec)] = scores
    return pd.DataFrame.from_dict(rows, orient="index")


def found(run: runs.RunResult, network: nn.Module, queries: int = 5, k: int = 5) -> Figure:
    """Test images of a run, evenly spread, and the k others nearest to each by a network, searched with faiss."""
    manifest = batches.load_dataset(run.spec)
    test = manifest.indices("test")
    embeddings = inference.embed_images(run.spec, network, manifest, test)
    points = normalize(embeddings).numpy()
    queried, gallery = np.flatnonzero(manifest.is_query[test]), np.flatnonzero(manifest.is_gallery[test])
    queried = queried[np.linspace(0, len(queried) - 1, min(queries, len(queried))).astype(int)]
    gallery = np.setdiff1d(gallery, queried)
    nearest = gallery[network_files.nearest(points[queried], points[gallery], k)[1]]
    labels = manifest.labels[test]
    right = labels[nearest] == labels[queried][:, None] if manifest.labelled else None
    pictures = [images.thumbnails(manifest, test[rows]) for rows in (queried, *nearest)]
    return images.retrieved(pictures[0], pictures[1:], right)


YourImages = Study(
    "01_your_images",
    YourImagesParams,
    your_images,
    table_of,
    measures,
    decides=decided,
    profiles={
        "quick": {"train_from": "head", "steps": 40, "attempts": ATTEMPTS[:2]},
        "small": {"attempts": ("head", "tail briefly", "tail gently", "tail")},
        "paper": {"train_from": "head", "steps": 1000, "epochs": 0, "warmup_epochs": 0.0, "attempts": ATTEMPTS[:2]},
    },
)
