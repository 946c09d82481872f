"""What a profile would cost before anything is run: every run of the notebooks, its hours and its memory.

Nothing is loaded but the code: images are counted by the official splits (an upper bound for a partial copy), memory is
found by shape inference. Hours are images over throughput. The throughputs below are measured where that is said; the
others are stated, typical of one A100 in float32 (convolutions in TF32, matrix products not). Evaluation costs a third
of training per image. A run that stops early is counted with the steps such runs took: CCP's Table I on SOP and
In-Shop, an assumption on smaller sets.
"""

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd
import torch

from dmlrepro.datasets import manifests
from dmlrepro.networks import backbones
from dmlrepro.papers import catalogue
from dmlrepro.papers.params import benchmark_of
from dmlrepro.training import loop
from dmlrepro.training.builders import build_loss, scheme_builder
from dmlrepro.training.spec import RunSpec


@dataclass(frozen=True)
class Throughput:
    """Training images per second at an image size in pixels; on "gpu" (one A100) or "cpu" (one core)."""

    images: float
    size: int
    device: str
    source: str


THROUGHPUT = {
    "conv4": Throughput(5500, 32, "cpu", "measured"),
    "squeezenet1_1": Throughput(200, 128, "cpu", "measured"),
    "resnetv2_20": Throughput(10_000, 28, "gpu", "stated"),
    "bn_inception": Throughput(1200, 224, "gpu", "stated"),
    "googlenet": Throughput(1500, 224, "gpu", "stated"),
    "resnet50.tv_in1k": Throughput(750, 224, "gpu", "stated"),
    "vit_small_patch16_224.augreg_in21k": Throughput(350, 224, "gpu", "stated"),
    "vit_small_patch16_224.dino": Throughput(350, 224, "gpu", "stated"),
    "vit_base_patch16_224.augreg_in21k": Throughput(95, 224, "gpu", "stated"),
}
OTHERS = Throughput(500, 224, "gpu", "stated")
EARLY_STOP_STEPS = {"sop": 78_000, "inshop": 101_000}  # the means of CCP's Table I
EARLY_STOP_STEPS_ELSEWHERE = 10_000  # this is assumed
BYTES_PER_PARAMETER = 16  # float32 value, gradient and Adam's two moments


def plan(specs_by_notebook: dict[str, list[RunSpec]], trials: Mapping[str, int] | None = None) -> pd.DataFrame:
    """One row per run in the order of the notebooks.

    Columns: notebook, dataset, backbone, dim, protocol, method, setting, seed, fold, epochs, hours, device, throughput
    (its source), memory in GB, and trials of a search before the run, by notebook. A run that an earlier row has
    already costs nothing: `hours` is 0 and `throughput` is "shared".
    """
    seen, rows = set(), []
    for notebook, specs in specs_by_notebook.items():
        for spec in specs:
            identity = json.dumps(spec.as_dict(), sort_keys=True)
            row = {"notebook": notebook} | _row(spec, shared=identity in seen)
            rows.append(row | {"trials": (trials or {}).get(notebook, 0) if spec.loss is not None else 0})
            seen.add(identity)
    return pd.DataFrame(rows)


def grouped(table: pd.DataFrame) -> pd.DataFrame:
    """The same with the seeds and folds of a method in one row: `runs` of them, hours summed."""
    same = ["notebook", "dataset", "backbone", "dim", "protocol", "method", "setting"]
    return (
        table.assign(shared=table["throughput"] == "shared")
        .groupby(same, sort=False, dropna=False)
        .agg(
            runs=("seed", "size"),
            epochs=("epochs", "max"),
            hours=("hours", "sum"),
            device=("device", "first"),
            throughput=("throughput", "first"),
            gigabytes=("gigabytes", "max"),
        )
        .reset_index()
    )


def totals(table: pd.DataFrame) -> list[str]:
    """Lines under the table: hours per kind of device, and what a search would add."""
    distinct = table[table["throughput"] != "shared"]
    names = {"gpu": "GPU hours", "cpu": "CPU core hours"}
    lines = [f"{len(table)} runs, {len(distinct)} of them distinct"]
    lines += [f"total {group['hours'].sum():.3g} {names[kind]}" for kind, group in distinct.groupby("device")]
    tuned = distinct[(distinct["trials"] > 0) & (distinct["seed"] == 0)]
    if not tuned.empty:
        hours = (tuned["trials"] * tuned["hours"]).sum()
        number = ", ".join(map(str, sorted(set(tuned["trials"]))))
        lines.append(f"tuning these methods first ({number} trials each) takes another {hours:.3g} hours")
    return lines


def _row(spec: RunSpec, *, shared: bool) -> dict:
    speed = THROUGHPUT.get(spec.backbone, OTHERS)
    epochs, images = _work(spec)
    pixels = (spec.image_size or speed.size) ** 2 / speed.size**2
    return {
        "dataset": spec.dataset,
        "backbone": spec.backbone,
        "dim": spec.embedding_size or 0,
        "protocol": spec.protocol,
        "method": spec.method,
        "setting": spec.setting,
        "seed": spec.seed,
        "fold": -1 if spec.fold is None else spec.fold,
        "epochs": round(epochs, 1),
        "hours": 0.0 if shared else images * pixels / speed.images / 3600,
        "device": speed.device,
        "throughput": "shared" if shared else speed.source,
        "gigabytes": round(_gigabytes(spec), 2),
    }


def _work(spec: RunSpec) -> tuple[float, float]:
    """Epochs, and images in units of one training image's forward and backward."""
    (train, classes), test = _counts(spec)
    held_out = 0
    if spec.fold is not None:
        kept = 1 - math.ceil(classes / spec.folds) / classes
        train, held_out = round(train * kept), train - round(train * kept)
    per_epoch = max(train // spec.batch_size, 1)
    if spec.loss is None:
        return 0.0, test / 3
    schedule = loop.Schedule(spec, per_epoch)
    steps = schedule.total
    if spec.patience is not None:
        steps = min(steps, EARLY_STOP_STEPS.get(benchmark_of(spec.dataset), EARLY_STOP_STEPS_ELSEWHERE))
    evaluations = math.ceil(steps / schedule.eval_every) if schedule.eval_every else 0
    each = held_out if schedule.validation_only else held_out + test
    evaluated = evaluations * each + (held_out + test) * (2 if schedule.validation_only else 1)
    if spec.neighbours:  # every epoch looks for them among all training images
        evaluated += train * math.ceil(steps / per_epoch)
    trained = steps * spec.batch_size * spec.views * scheme_builder(spec.scheme, spec.scheme_options).relative_cost
    if spec.freeze_trunk:  # features are computed once
        trained, evaluated = 0, train + held_out + test
    return steps / per_epoch, trained + evaluated / 3


def _counts(spec: RunSpec) -> tuple[tuple[int, int], int]:
    """(training images, classes) and test images: of the complete set, or of the reader's own images as they lie."""
    if manifests.is_own(spec.dataset):
        manifest = manifests.load(spec.dataset)
        return (len(manifest.indices("train")), manifest.num_train_classes), len(manifest.indices("test"))
    base = benchmark_of(spec.dataset)
    if base == "glyphs":
        from dmlrepro.datasets import glyphs

        train, test = glyphs.characters()
        each = spec.images_per_class or 24
        return (len(train) * each, len(train)), len(test) * each
    parts = manifests.OFFICIAL[base]
    return parts["train"], sum(images for part, (images, _) in parts.items() if part != "train")


def _gigabytes(spec: RunSpec) -> float:
    """Parameters with their optimiser state, and the activations of a batch kept for backward."""
    features, parameters, activations = _network(spec.backbone, spec.image_size or 32)
    dim = spec.embedding_size or features
    parameters += features * dim
    if spec.loss is not None:
        (_, classes), _ = _counts(spec)
        parameters += _loss_parameters(spec.loss, json.dumps(dict(spec.loss_options)), classes, dim)
    batch = 256 if spec.loss is None else spec.batch_size * spec.views
    kept = 0 if spec.loss is None or spec.freeze_trunk else activations * batch * 4
    return (parameters * BYTES_PER_PARAMETER + kept) / 1e9


@functools.cache
def _loss_parameters(loss: str, options: str, classes: int, dim: int) -> int:
    spec = RunSpec("glyphs", loss=loss, loss_options=json.loads(options), steps=1)
    return sum(parameter.numel() for parameter in build_loss(spec, classes, dim).parameters())


@functools.cache
def _network(name: str, size: int) -> tuple[int, int, int]:
    """Features, parameters, and numbers that one image leaves in the layers of a backbone."""
    with torch.device("meta"):
        trunk, preprocess = backbones.build_trunk(name, None, 3)
        trunk.eval()
        left = []
        for module in trunk.modules():
            if not any(True for _ in module.children()):
                module.register_forward_hook(lambda _, __, output: left.append(output.numel()))
        network = backbones.EmbeddingNet(trunk, None, preprocess)
        left.clear()
        trunk(torch.empty(1, len(preprocess.mean), size, size))
    return network.num_features, sum(p.numel() for p in trunk.parameters()), sum(left)


def table_of(notebooks: Iterable[str], params_of) -> pd.DataFrame:
    """The plan of notebooks by name; `params_of(params_class)` gives the parameters each is run with."""
    specs, trials = {}, {}
    for name in notebooks:
        notebook = catalogue.find(name)
        params = params_of(notebook.params)
        if getattr(params, "search_trials", 0):  # what it finds has the cost of the default values
            trials[params.notebook] = params.search_trials
        specs[params.notebook] = notebook.specs_untrained(params)
    return plan(specs, trials)
