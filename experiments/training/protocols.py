"""Evaluation protocols as data: what a method trains on, when it stops, which model counts, and what is scored.

A protocol turns the spec of a method into the runs it consists of (`expand`), and the finished runs into scores
(`combine`); docs/protocols.md has them in words. The training loop knows none of them: each is a choice of RunSpec
fields. The structure of a protocol holds at any scale: on embedded glyphs too, mlrc trains on folds and restores the
model of the best validation. Its settings (optimiser, batch, crops, budget) are those of the published benchmarks and
are taken at the profile `paper`; other profiles keep their own.

Deviations: crops are cut from images stored with a short side of 256, where the conventional protocol's code crops
the original file (`original_images` does so). The authors sample two images per class with replacement under roth, we
without. The longest run is 200,000 steps under mlrc and ccp_early_stopping, where the papers name no end; patience ends
it before (CCP, Table I: after 48,000 to 131,000 steps on SOP and In-Shop).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from dmlrepro import retrieval
from experiments.checks import refuse_unknown
from experiments.training import batches, inference, records
from experiments.training.device import device_for_training
from experiments.training.records import measurement
from experiments.training.spec import RunSpec

TUNING_SEED = 10_000  # every search runs on this seed, no evaluation does
THIRDS = 3  # disjoint parts of the training classes, each of which validates once in the search of every method
KS = {"sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30, 40)}  # ranks of Recall@K as each benchmark reports them


@dataclass(frozen=True)
class Protocol:
    """One way to evaluate a method. See the head of this file for structure and settings, both fields of RunSpec."""

    structure: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    by_dataset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # further settings of one benchmark
    samples_per_class: tuple[int, int] | None = None  # for losses on pairs and on proxies; None: the method's own
    folds: int = 0  # a method has so many models per seed, each validated on another part of the train classes
    repeats: int = 5  # seeds
    trials: int = 0  # a search for a method's hyperparameters tries so many


def _mlrc_stop(epochs: int, patience: int) -> dict:
    """Evaluate every so many epochs of 100 steps; the code stops once more than `patience` passed since the best."""
    return {"eval_every": 100 * epochs, "patience": patience // epochs + 1}


_BEST = {"monitor": "MAP@R", "restore_best": True}
_TO_THE_END = {"steps": 200_000, "epochs": None, "warmup_epochs": 0.0}
_CROPS_224 = {"image_size": 224, "test_resize": 256, "crop_scale": (0.08, 1.0), "eval_every_epochs": 1}
_CROPS_227 = {"image_size": 227, "test_resize": 256, "crop_scale": (0.16, 1.0)}
_IBN_128 = {"backbone": "bn_inception", "weights": "imagenet", "pooling": "avg", "embedding_size": 128}
_IBN_128 |= {"freeze_batchnorm": True, "batch_size": 32, "weight_decay": 1e-4} | _CROPS_227 | _TO_THE_END
_CCP = _IBN_128 | {"optimizer": "adam", "lr": 1e-5, "clip_value": 10.0, "clip_norm": 10.0}
_CCP |= {"eval_every": 25, "patience": 60}
_CCP_LARGE = {"sop": {"eval_every": 250}, "inshop": {"eval_every": 250}}
_MLRC_LARGE = _mlrc_stop(20, 39)  # SOP, and the set that is most like it; In-Shop is not among MLRC's benchmarks
_R50_512 = {"backbone": "resnet50.tv_in1k", "weights": "imagenet", "pooling": "avg", "embedding_size": 512}
_GOOGLENET = {"backbone": "googlenet", "weights": "imagenet", "pooling": "avg"}


PROTOCOLS = {
    "conventional": Protocol(settings={"pooling": "avg+max"} | _CROPS_224),  # of ProxyAnchor's code
    "mlrc": Protocol(  # Musgrave et al., "A Metric Learning Reality Check", ECCV 2020
        structure=_BEST,
        settings=_IBN_128 | {"optimizer": "rmsprop", "lr": 1e-6} | _mlrc_stop(2, 9),
        by_dataset={"cars": _mlrc_stop(5, 14), "sop": _MLRC_LARGE, "inshop": _MLRC_LARGE},
        samples_per_class=(4, 1),
        folds=4,
        repeats=10,
        trials=50,
    ),
    "roth": Protocol(  # Roth et al., ICML 2020; nivMF Table 1
        structure={"freeze_batchnorm": True},
        settings=_CROPS_224
        | (_R50_512 | {"batch_size": 112, "optimizer": "adam", "lr": 1e-5, "weight_decay": 4e-4})
        | {"steps": None, "epochs": 150, "warmup_epochs": 0.0},
        samples_per_class=(2, 2),
    ),
    "stml": Protocol(  # Kim et al., "Self-Taught Metric Learning without Labels", CVPR 2022; PLM
        structure={"views": 2, "neighbours": 5, "samples_per_class": None},
        settings=_GOOGLENET
        | (_CROPS_227 | {"batch_size": 100, "optimizer": "adam", "lr": 5e-4})
        | {"steps": None, "epochs": 200, "eval_every_epochs": 1},
        by_dataset={"sop": {"neighbours": 2}},
    ),
    "ccp_early_stopping": Protocol(_BEST, _CCP, _CCP_LARGE, samples_per_class=(4, 1), folds=4),
    # of CCP's ablations: a single model, validated on the last third of the train classes
    "ccp_one_fold": Protocol(_BEST | {"fold": 2, "folds": 3}, _CCP, _CCP_LARGE, samples_per_class=(4, 1)),
}


def find(name: str) -> Protocol:
    refuse_unknown("unknown protocol", [name], PROTOCOLS)
    return PROTOCOLS[name]


def published_settings(name: str, dataset: str, backbone: str | None = None) -> dict:
    """RunSpec fields of a protocol as published for a benchmark or a partial copy of it; other sets: those of CUB.

    backbone: one that replaces the protocol's. A vision transformer takes images of 224 pixels only and is pooled by
    its class token, whatever the protocol says of convolutional networks.
    """
    protocol, benchmark = find(name), dataset.removesuffix("-subset")
    settings = {**protocol.settings, **protocol.by_dataset.get(benchmark, {}), "ks": KS.get(benchmark, RunSpec.ks)}
    if (backbone or settings.get("backbone", "")).startswith("vit_"):
        settings |= {"pooling": "token", "image_size": 224}
    return settings


def expand(
    spec: RunSpec, name: str = "conventional", *, published: bool = False, keep: Collection[str] = ()
) -> list[RunSpec]:
    """The runs that a method consists of under a protocol: one, or one per fold. published: take its settings too, not
    only its structure. keep: fields that the protocol does not change, because the reader set them.

    ValueError: an unknown protocol, or one that does not fit the spec (the views of stml need image_size).
    """
    protocol = find(name)
    spec = spec.replace(**decided(spec, name, published=published, keep=keep), protocol=name)
    if (spec.loss is None and spec.embedding_size is None) or not protocol.folds:
        return [spec]
    return [spec.replace(fold=fold, folds=protocol.folds) for fold in range(protocol.folds)]


def decided(spec: RunSpec, name: str, *, published: bool = False, keep: Collection[str] = ()) -> dict:
    """The fields of a spec that a protocol decides, but for the folds; as in `expand`."""
    protocol = find(name)
    fields = dict(protocol.structure)
    if published:
        replaced = "backbone" in keep or "backbone" not in protocol.settings
        fields |= published_settings(name, spec.dataset, spec.backbone if replaced else None)
        if spec.clip_value and "clip_value" in fields:
            fields["clip_value"] = min(spec.clip_value, fields["clip_value"])  # a method's own may be tighter
        if protocol.samples_per_class:
            on_pairs, on_proxies = protocol.samples_per_class
            fields["samples_per_class"] = on_pairs if (spec.samples_per_class or 1) > 1 else on_proxies
    elif fields.get("restore_best") and not (spec.eval_every or spec.eval_every_epochs):  # ten evaluations
        by_steps: dict[str, Any] = {"eval_every": max((spec.steps or 0) // 10, 1)}
        fields |= {"eval_every_epochs": (spec.epochs or 10) / 10} if spec.steps is None else by_steps
    if spec.loss is None:
        fields = {name: fields[name] for name in ("pooling", "image_size", "test_resize", "ks") if name in fields}
    return {name: value for name, value in fields.items() if name not in keep}


def on_thirds(spec: RunSpec, *, curves: bool = False) -> list[RunSpec]:
    """The runs that judge a spec in the search of every method, one per fold, scored at the last step, or at the best
    evaluation if the spec restores that. curves: the scores of all evaluations are kept."""
    unused = spec.keep_history and not (spec.restore_best or spec.patience or curves)
    looks = {"keep_history": curves} | ({"eval_every": None, "eval_every_epochs": None} if unused else {})
    how = {"seed": TUNING_SEED, "threads": 1, "folds": THIRDS} | looks
    return [spec.replace(fold=fold, **how) for fold in range(THIRDS)]


@dataclass(frozen=True)
class Scored:
    """Scores of several runs that count as one; the part of a RunResult that a table needs."""

    spec: RunSpec
    dataset: str
    rows: list[dict]


def combine(finished: Iterable) -> list:
    """Finished runs as they enter a table: the models of one method's folds become two entries, others stay.

    "<protocol> separated" is the mean of the models' scores, "<protocol> concatenated" the score of their L2-normalised
    embeddings side by side, k times as long (Musgrave et al., Sec. 3.3), of the main network where an algorithm has
    several. An untrained network, which needs no folds, has the same score under both. ValueError: a fold is missing.
    """
    groups: dict[int | str, list] = {}  # by their first run, which keeps their place in the table
    for number, run in enumerate(finished):
        protocol = PROTOCOLS.get(run.spec.protocol, Protocol())
        alone = not protocol.folds and (run.spec.fold is None or "fold" in protocol.structure)
        groups.setdefault(number if alone else repr(run.spec.replace(fold=None)), []).append(run)
    return [entry for key, group in groups.items() for entry in (group if isinstance(key, int) else _ensemble(group))]


def _ensemble(models: list) -> list[Scored]:
    first, dataset = models[0].spec, models[0].dataset
    labels = [f"{first.protocol.replace('mlrc', 'MLRC')} {scored}" for scored in ("separated", "concatenated")]
    if first.fold is None:
        return [Scored(first.replace(protocol=label), dataset, models[0].rows) for label in labels]
    if (there := sorted(run.spec.fold for run in models)) != list(range(first.folds)):
        raise ValueError(f"{first.method} seed {first.seed}: need the runs of folds 0..{first.folds - 1}, got {there}")
    if isinstance(models[0], Scored):  # measured on each model: the mean stands under both
        sizes = [(first.embedding_size or 0) * number or None for number in (1, len(models))]
        both = [first.replace(fold=None, embedding_size=n, protocol=label) for n, label in zip(sizes, labels)]
        return [Scored(spec, dataset, _mean_rows(models)) for spec in both]
    scores, selection = records.derived(models, _concatenated_scores), "val_best" if first.restore_best else "last"
    steps = [row["step"] for run in models for row in run.rows if row["selection"] == selection]
    together = {"selection": selection, "step": round(sum(steps) / len(steps))}
    rows = _mean_rows(models), [together | {"metric": name, "value": value} for name, value in scores.items()]
    dim = records.derived(models[:1], _dimension)
    return [
        Scored(first.replace(fold=None, embedding_size=size, protocol=label), dataset, some)
        for label, size, some in zip(labels, (dim, dim * len(models)), rows)
    ]


@measurement("dimension")
def _dimension(run: Any) -> int:
    return run.embeddings.shape[1]


def _mean_rows(models: list) -> list[dict]:
    """Means over the models; `step` is the mean of theirs, or each step of selection "every" that all of them have."""
    values: dict[tuple, list[tuple[int, float]]] = {}
    for run in models:
        for row in run.rows:
            merged = ("value",) if row["selection"] == "every" else ("step", "value")
            what = tuple(item for item in row.items() if item[0] not in merged)
            values.setdefault(what, []).append((row["step"], row["value"]))
    rows = []
    for what, pairs in values.items():
        if len(pairs) == len(models) or dict(what)["selection"] != "every":
            step, value = (sum(column) / len(pairs) for column in zip(*pairs))
            rows.append(dict(what) | {"step": round(step), "value": value})
    return rows


@measurement("concatenated_scores")
def _concatenated_scores(*models: Any) -> dict[str, float]:
    """The scores of the models' unit embeddings side by side."""
    spec, device = models[0].spec, device_for_training()
    manifest = batches.load_dataset(spec)
    embeddings = torch.cat([F.normalize(run.embeddings.to(device), dim=1) for run in models], dim=1)
    points, labels, searched = inference.searching(embeddings, manifest, manifest.indices("test"))
    return retrieval.retrieval(points, labels, spec.ks, measures=retrieval.MEASURES, **searched)
