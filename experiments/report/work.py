"""What a run computes and keeps, without computing it, and what is missing here for it.

No image is loaded: they are counted by the official splits (an upper bound for a partial copy), memory is found by
shape inference. A run that stops early is counted with the steps such runs took: CCP's Table I on SOP and In-Shop, an
assumption on smaller sets.
"""

import functools
import json
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn

from experiments.datasets import manifests
from experiments.networks import backbones
from experiments.profiles import benchmark_of
from experiments.report import throughput
from experiments.training import loop
from experiments.training.builders import build_loss, scheme_builder
from experiments.training.spec import RunSpec

EARLY_STOP_STEPS = {"sop": 78_000, "inshop": 101_000}  # the means of CCP's Table I
EARLY_STOP_STEPS_ELSEWHERE = 10_000  # this is assumed
BYTES_PER_PARAMETER = 16  # float32 value, gradient and Adam's two moments


class Work(NamedTuple):
    """What a run computes: its steps, the images it trains on and evaluates, the pairs that are ranked, and how often
    it is evaluated on the way (looks) and at its end."""

    epochs: float
    steps: int
    trained: int
    evaluated: int
    compared: int
    looks: int
    finals: int


def of(spec: RunSpec) -> Work:
    (everything, _), test = counts(spec)
    train = _training_images(spec)
    held_out = everything - train
    per_epoch = max(train // spec.batch_size, 1)
    if spec.loss is None:
        return Work(0.0, 0, 0, test, test**2, 0, 1)
    schedule = loop.Schedule(spec, per_epoch)
    steps = schedule.total
    if spec.patience is not None:
        steps = min(steps, EARLY_STOP_STEPS.get(benchmark_of(spec.dataset), EARLY_STOP_STEPS_ELSEWHERE))
    evaluations = math.ceil(steps / schedule.eval_every) if schedule.eval_every else 0
    per_look = held_out if schedule.validation_only else held_out + test
    # the last look tells what is published, unless it looks at validation classes only; the best weights have their own
    finals = 2 if schedule.validation_only else int(spec.restore_best) + int(not evaluations)
    evaluated = evaluations * per_look + finals * (held_out + test)
    compared = evaluations * (held_out**2 + (per_look > held_out) * test**2) + finals * (held_out**2 + test**2)
    if spec.neighbours:  # every epoch looks for them among all training images
        evaluated += train * math.ceil(steps / per_epoch)
        compared += train**2 * math.ceil(steps / per_epoch)
    trained = steps * spec.batch_size * spec.views * scheme_builder(spec.scheme, spec.scheme_options).relative_cost
    if spec.train_from:  # what lies below is computed once for every view
        share, _ = _of_tail(spec)
        trained = round(share * trained)
        evaluated = round(share * evaluated) + (spec.cached_views or 1) * everything + test
    return Work(steps / per_epoch, steps, trained, evaluated, compared, evaluations, finals)


def _training_images(spec: RunSpec) -> int:
    (train, classes), _ = counts(spec)
    return train if spec.fold is None else round(train * (1 - math.ceil(classes / spec.folds) / classes))


def _of_tail(spec: RunSpec) -> tuple[float, float]:
    """What a tail has of its network's multiplications, and of the numbers that an image leaves in its layers."""
    if spec.train_from == "head":
        return 0.0, 0.0
    return _tail(spec.backbone, spec.train_from, spec.image_size or throughput.of_backbone(spec.backbone).size)


def counts(spec: RunSpec) -> tuple[tuple[int, int], int]:
    """(training images, classes) and test images: of the complete set, or of the reader's own images as they lie."""
    if manifests.is_own(spec.dataset):
        return own_counts(spec.dataset)
    base = benchmark_of(spec.dataset)
    if base == "glyphs":
        from experiments.datasets import glyphs

        train, test = glyphs.characters()
        per_class = spec.images_per_class or 24
        return (len(train) * per_class, len(train)), len(test) * per_class
    parts = manifests.OFFICIAL[base]
    return parts["train"], sum(images for part, (images, _) in parts.items() if part != "train")


@functools.cache
def own_counts(name: str) -> tuple[tuple[int, int], int]:  # anew in every plan
    manifest = manifests.load(name)
    return (len(manifest.indices("train")), manifest.num_train_classes), len(manifest.indices("test"))


def gigabytes(spec: RunSpec, gpus: int) -> float:
    """Parameters with their optimiser state, and the activations of a GPU's share of a batch, kept for backward."""
    features, parameters, activations = network(spec.backbone, spec.image_size or 32)
    dim = spec.embedding_size or features
    parameters += features * dim + loss_parameters(spec)
    batch = 256 if spec.loss is None else spec.batch_size * spec.views
    activations *= 0 if spec.loss is None else _of_tail(spec)[1] if spec.train_from else 1
    kept = activations * math.ceil(batch / gpus) * 4
    return (parameters * BYTES_PER_PARAMETER + kept) / 1e9


def loss_of(spec: RunSpec) -> tuple[str, str, int, int]:
    """A loss by plain values: name, options, classes, dimension."""
    (_, classes), _ = counts(spec)
    dim = spec.embedding_size or network(spec.backbone, spec.image_size or 32)[0]
    return spec.loss, json.dumps(dict(spec.loss_options)), classes, dim


def loss_module(loss: str, options: str, classes: int, dim: int) -> nn.Module:
    return build_loss(RunSpec("glyphs", loss=loss, loss_options=json.loads(options), steps=1), classes, dim)


def loss_parameters(spec: RunSpec) -> int:
    return 0 if spec.loss is None else _numbers_of(*loss_of(spec))


@functools.cache
def _numbers_of(*loss: *tuple[str, str, int, int]) -> int:
    return sum(parameter.numel() for parameter in loss_module(*loss).parameters())


@functools.cache
def network(name: str, size: int) -> tuple[int, int, int]:
    """Features, parameters, and numbers that one image leaves in the layers of a backbone."""
    with torch.device("meta"):
        trunk, preprocess = backbones.build_trunk(name, None, 3)
        whole = backbones.EmbeddingNet(trunk, None, preprocess)
    left, _ = _passes(trunk, len(preprocess.mean), size)
    return whole.num_features, sum(p.numel() for p in trunk.parameters()), left[-1]


@functools.cache
def _tail(name: str, block: str, size: int) -> tuple[float, float]:
    with torch.device("meta"):
        trunk, preprocess = backbones.build_trunk(name, None, 3)
    left, work = _passes(trunk, len(preprocess.mean), size, backbones.blocks(name)[block])
    return 1 - work[0] / work[-1], 1 - left[0] / left[-1]


def _passes(trunk: nn.Module, channels: int, size: int, *paths: str) -> tuple[list[int], list[int]]:
    """Numbers left in the layers, and multiplications, until an image reaches each of some modules, and at the end."""
    from torch.utils.flop_counter import FlopCounterMode

    trunk.eval()
    left: list[int] = []
    totals: tuple[list[int], list[int]] = [], []

    def note(*_: object) -> None:
        totals[0].append(sum(left))
        totals[1].append(counter.get_total_flops() // 2)

    for module in trunk.modules():
        if not any(True for _ in module.children()):
            module.register_forward_hook(lambda _, __, output: left.append(output.numel()))
    for path in paths:
        trunk.get_submodule(path).register_forward_pre_hook(note)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        trunk(torch.empty(1, channels, size, size))
    note()
    return totals


def problems(specs: Iterable[RunSpec]) -> list[str]:
    """What would stop these runs on this machine, each with its remedy: data, weights, batches that are too large."""
    specs = list(specs)
    obstacles = [_too_large_batch(spec) for spec in specs]
    weights = dict.fromkeys((spec.backbone, spec.weights) for spec in specs)
    obstacles += [backbones.missing_weights(name, of) for name, of in weights]
    obstacles += [_missing_data(name) for name in dict.fromkeys(spec.dataset for spec in specs)]
    return list(dict.fromkeys(filter(None, obstacles)))


def _too_large_batch(spec: RunSpec) -> str:
    train = _training_images(spec)
    if spec.loss is None or spec.batch_size <= train:
        return ""
    where = spec.dataset + " outside a fold" * (spec.fold is not None)
    return f"batch_size {spec.batch_size} is larger than the {train} training images of {where}; lower batch_size"


def _missing_data(dataset: str) -> str:
    if dataset == "glyphs":
        return ""
    try:
        manifests.load(dataset)
    except (FileNotFoundError, ValueError) as error:
        base = dataset.removesuffix("-subset")
        part = base != dataset and base in manifests.OFFICIAL and isinstance(error, FileNotFoundError)
        whole = f"; what it fetches is the whole set, dataset = {base!r}" if part else ""
        return f"dataset {dataset}: {error}{whole}"
    return ""
