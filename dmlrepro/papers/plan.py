"""What a profile would cost before anything is run: every run of the notebooks, its hours and its memory.

No image is loaded: they are counted by the official splits (an upper bound for a partial copy), memory is found by
shape inference. With `measured` each kind of run is set up on its own images, where they are here, and its parts are
timed: a step, what precedes an epoch, an evaluation of each sort; hours are their sum, and activations that runs share
are counted once. Else hours are those of one device: images over throughput, the loss of each step, and the ranking of
each evaluation, whose images cost a third of training's. The throughputs below are measured where that is said; the
others are stated, typical of one A100 in float32 (convolutions in TF32, matrix products not), where bfloat16 trains
twice as fast. Several GPUs share the images of a run, and what they say to each other is not counted. A run that stops
early is counted with the steps such runs took: CCP's Table I on SOP and In-Shop, an assumption on smaller sets.
"""

import dataclasses
import functools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd
import torch
from torch import nn

from dmlrepro.datasets import manifests
from dmlrepro.networks import backbones
from dmlrepro.papers import catalogue, timing
from dmlrepro.papers.params import benchmark_of
from dmlrepro.training import distributed, inference, loop, records, runs
from dmlrepro.training.builders import build_loss, scheme_builder
from dmlrepro.training.spec import RunSpec


@dataclass(frozen=True)
class Throughput:
    """Training images per second at an image size in pixels; on "gpu" (one A100) or "cpu" (one core).

    evaluated: images per second in evaluation; None: three times as many as in training.
    loss: seconds of a step's loss; None: those of three products of the batch with the loss's parameters.
    """

    images: float
    size: int
    device: str
    source: str
    evaluated: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Parts:
    """Seconds of the parts of a run on this machine: `measured` of a run whose images and weights are here.

    start: until the first step. once: activations which no run had computed before; later runs share them.
    epoch: what the scheme does before one, such as looking for neighbours. step: of training, its batch included.
    look: an evaluation on the way. final: one of all that is published.
    """

    start: float
    once: float
    epoch: float
    step: float
    look: float
    final: float
    device: str
    source: str = "measured here"


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
PRODUCTS = {"gpu": 1e13, "cpu": 2e10}  # additions and multiplications per second of float32 matrix products, stated
# bfloat16 trains so many times as fast: stated of GPUs, measured with the matrix units of CPUs (ResNet-18)
BFLOAT16 = {"gpu": 2.0, "cpu with AMX": 1.6, "cpu": 1.0}
STEPS, SECONDS = 20, 60  # a measurement has so many steps, or as many as begin in this time,
SECONDS_OF_A_KIND = 2  # and on a run's own images, where there are many kinds, in this
EARLY_STOP_STEPS = {"sop": 78_000, "inshop": 101_000}  # the means of CCP's Table I
EARLY_STOP_STEPS_ELSEWHERE = 10_000  # this is assumed
BYTES_PER_PARAMETER = 16  # float32 value, gradient and Adam's two moments


def plan(
    specs_by_notebook: dict[str, list[RunSpec]],
    trials: Mapping[str, int] | None = None,
    *,
    gpus: int = 1,
    throughput: Callable[[RunSpec], Throughput | Parts] | None = None,
) -> pd.DataFrame:
    """One row per run in the order of the notebooks.

    Columns: notebook, dataset, backbone, dim, protocol, method, setting, seed, fold, epochs, hours (of one device),
    device, throughput (its source), memory in GB of each of the `gpus` that share a run, and trials of a search before
    the run, by notebook. A run that an earlier row has already costs nothing: `hours` is 0 and `throughput` is
    "shared". throughput: `stated` by default, or `measured`.
    """
    if gpus < 1:
        raise ValueError(f"gpus must be at least 1, got {gpus}")
    _own_counts.cache_clear()
    seen, paid, rows = set(), set(), []

    def speed_of(spec: RunSpec) -> Throughput | Parts:
        found = (throughput or stated)(spec)
        if not isinstance(found, Parts) or found not in paid:
            paid.add(found)
            return found
        return dataclasses.replace(found, once=0.0)

    for notebook, specs in specs_by_notebook.items():
        for spec in specs:
            identity = json.dumps(spec.as_dict(), sort_keys=True)
            row = {"notebook": notebook} | _row(spec, speed_of, gpus, shared=identity in seen)
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


def by_notebook(table: pd.DataFrame) -> pd.DataFrame:
    """Hours of each notebook on each data set, by kind of device; a run that several read counts for the first."""
    return table.groupby(["notebook", "dataset", "device"], sort=False, as_index=False)["hours"].sum()


def totals(table: pd.DataFrame, gpus: int = 1) -> list[str]:
    """Lines under the table: hours per kind of device, how long so many GPUs take, and what a search would add."""
    distinct = table[table["throughput"] != "shared"]
    names = {"gpu": "GPU hours", "cpu": "CPU core hours"}
    lines = [f"{len(table)} runs, {len(distinct)} of them distinct"]
    lines += [f"total {group['hours'].sum():.3g} {names[kind]}" for kind, group in distinct.groupby("device")]
    if gpus > 1 and (alone := distinct.loc[distinct["device"] == "gpu", "hours"].sum()):
        lines.append(f"on {gpus} GPUs at least {alone / gpus:.3g} hours")
    tuned = distinct[(distinct["trials"] > 0) & (distinct["seed"] == 0)]
    if not tuned.empty:
        hours = (tuned["trials"] * tuned["hours"]).sum()
        number = ", ".join(map(str, sorted(set(tuned["trials"]))))
        lines.append(f"tuning these methods first ({number} trials each) takes another {hours:.3g} hours")
    return lines


def problems(specs: Iterable[RunSpec]) -> list[str]:
    """What would stop these runs on this machine, each with its remedy: data, weights, batches that are too large."""
    specs = list(specs)
    found = [_too_large_batch(spec) for spec in specs]
    weights = dict.fromkeys((spec.backbone, spec.weights) for spec in specs)
    found += [backbones.missing_weights(name, of) for name, of in weights]
    found += [_missing_data(name) for name in dict.fromkeys(spec.dataset for spec in specs)]
    return list(dict.fromkeys(filter(None, found)))


def recorded(notebook: str, params) -> str:
    """How many runs of a notebook are on record already, in words; "" where there is no record, or nothing that could
    be compared with it because the images or the weights are not here."""
    file = records.file_of(params.profile, notebook)
    specs = catalogue.find(notebook).specs_untrained(params)
    if file is None or not records.files(file.parent) or problems(specs):
        return ""
    return f"{notebook}: {sum(runs.on_record(specs, file))} of {len(specs)} runs are on record"


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


def stated(spec: RunSpec) -> Throughput:
    """The table's throughput at the run's precision."""
    found = THROUGHPUT.get(spec.backbone, OTHERS)
    if spec.precision == "float32":
        return found
    amx = found.device == "cpu" and getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    factor = BFLOAT16["cpu with AMX" if amx else found.device]
    return dataclasses.replace(found, images=factor * found.images, evaluated=3 * found.images)


def measured(spec: RunSpec) -> Throughput | Parts:
    """What one device of this machine does: the parts of the run on its own images, a second or two for each kind of
    run; where images or weights are not here, steps of the network and of the loss on random images.

    Raises:
        ValueError: a batch does not fit in the memory of the device.
    """
    device, kind = distributed.device_for_training(), _kind(spec)
    if kind not in _TIMED and not problems([spec]):
        with timing.threads(1 if device.type == "cpu" else None):
            _TIMED[kind] = _timed(spec, device)
    if kind in _TIMED:
        return _TIMED[kind]
    size = spec.image_size or THROUGHPUT.get(spec.backbone, OTHERS).size
    network = spec.backbone, spec.embedding_size, spec.pooling, size, spec.batch_size * spec.views, spec.precision
    try:
        with timing.threads(1 if device.type == "cpu" else None):
            train, evaluate = _network_seconds(*network)
            seconds = 0.0 if spec.loss is None else _loss_seconds(*_loss_of(spec), spec.batch_size)
    except torch.OutOfMemoryError as error:
        raise ValueError(f"a batch of {network[4]} images of {size} pixels does not fit; lower batch_size") from error
    batch = spec.batch_size * spec.views
    kind = "gpu" if device.type == "cuda" else "cpu"
    return Throughput(batch / train, size, kind, "measured here", evaluated=batch / evaluate, loss=seconds)


_TIMED: dict[str, Parts] = {}  # by kind, while the process runs
# what changes a run's numbers and not, or hardly, the cost of its parts
FREE = ("seed", "replica", "fold", "steps", "epochs", "lr", "head_lr", "loss_lr", "weight_decay", "loss_weight_decay")
FREE += ("label_noise", "patience", "restore_best", "keep_history", "eval_every", "eval_every_epochs", "lr_drop_epochs")


def _kind(spec: RunSpec) -> str:
    """What the cost of a run's parts depends on: not its seed, nor numbers with a fraction among its loss's options."""
    kept = {name: value for name, value in spec.as_dict().items() if name not in FREE}
    options = {name: value for name, value in spec.loss_options.items() if not isinstance(value, float)}
    looks = loop.Schedule(spec, 1)
    return json.dumps(
        [kept | {"loss_options": options}, spec.fold is None, looks.validation_only, sorted(looks.measures)]
    )


def _timed(spec: RunSpec, device: torch.device) -> Parts:
    """The parts of a run, each done a few times and nothing stored but activations."""
    loop.reuse_freed_memory()
    clock = functools.partial(timing.seconds, device=device.type)
    before = clock(lambda: loop.prepare(spec, device))
    start = clock(lambda: loop.prepare(spec, device))
    task, network = loop.prepare(spec, device)
    kind = "gpu" if device.type == "cuda" else "cpu"
    if spec.loss is None:
        final = clock(lambda: inference.evaluate(task, {"": network}, 0))
        return Parts(start, max(before - start, 0.0), 0.0, 0.0, 0.0, final, kind)
    scheme = scheme_builder(spec.scheme, spec.scheme_options)(spec, task, network, **spec.scheme_options)
    optimizer = loop.build_optimizer(spec, network, scheme.loss)
    schedule = loop.Schedule(spec, task.steps_per_epoch)
    epoch = clock(lambda: scheme.before_epoch(0))
    network.train()
    stream = task.train_batches(0, min(STEPS, task.steps_per_epoch), device, scheme.neighbours)
    taken: list[float] = []

    def step() -> None:
        loop.train_step(spec, scheme, network, optimizer, *next(stream), len(taken))
        scheme.after_step()

    began = time.monotonic()
    for _ in range(min(STEPS, task.steps_per_epoch)):
        taken.append(clock(step))
        if len(taken) > 3 and time.monotonic() - began > SECONDS_OF_A_KIND:
            break
    only, measures = schedule.validation_only, schedule.measures
    look = clock(lambda: inference.evaluate(task, scheme.evaluated(), 0, validation_only=only, measures=measures))
    final = clock(lambda: inference.evaluate(task, scheme.evaluated(), 0)) if only else look
    typical = statistics.median(taken[2:] or taken)  # the first ones allocate
    return Parts(start, max(before - start, 0.0), epoch, typical, look, final, kind)


@functools.cache
def _network_seconds(backbone, embedding_size, pooling, size, batch, precision) -> tuple[float, float]:
    """Seconds of a training step without its loss, and of the evaluation of as many images."""
    device = distributed.device_for_training()
    network = backbones.build(backbone, embedding_size, pooling=pooling, seed=0).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-6)
    network.train()
    images = torch.randint(256, (batch, 3, size, size), dtype=torch.uint8, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            network(images).float().square().mean().backward()
        optimizer.step()

    return _seconds(step, device), _seconds(lambda: inference.embed(network, iter([images])), device)


@functools.cache
def _loss_seconds(loss: str, options: str, classes: int, dim: int, batch: int) -> float:
    """Seconds of one loss, forward and backward, on random embeddings."""
    device = distributed.device_for_training()
    module = _loss(loss, options, classes, dim).to(device)
    embeddings = torch.randn(batch, dim, device=device, requires_grad=True)
    labels = torch.arange(batch, device=device) // 4 % classes
    return _seconds(lambda: module(embeddings, labels).backward(), device)


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Mean seconds of a call over `STEPS` calls, the first of which is left out, or as many as begin in `SECONDS`."""
    taken: list[float] = []
    started = time.monotonic()
    while len(taken) < 2 or (len(taken) <= STEPS and time.monotonic() - started < SECONDS):
        taken.append(timing.seconds(call, device.type))
    return sum(taken[1:]) / len(taken[1:])


def _row(spec: RunSpec, throughput: Callable[[RunSpec], Throughput | Parts], gpus: int, *, shared: bool) -> dict:
    speed = THROUGHPUT.get(spec.backbone, OTHERS) if shared else throughput(spec)
    work = _work(spec)
    return {
        "dataset": spec.dataset,
        "backbone": spec.backbone,
        "dim": spec.embedding_size or 0,
        "protocol": spec.protocol,
        "method": spec.method,
        "setting": spec.setting,
        "seed": spec.seed,
        "fold": -1 if spec.fold is None else spec.fold,
        "epochs": round(work.epochs, 1),
        "hours": 0.0 if shared else _hours(spec, work, speed),
        "device": speed.device,
        "throughput": "shared" if shared else speed.source,
        "gigabytes": round(_gigabytes(spec, gpus if speed.device == "gpu" else 1), 2),
    }


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


def _hours(spec: RunSpec, work: Work, speed: Throughput | Parts) -> float:
    if isinstance(speed, Parts):
        steps = speed.epoch * math.ceil(work.epochs) + speed.step * work.steps
        return (speed.start + speed.once + steps + speed.look * work.looks + speed.final * work.finals) / 3600
    features = _network(spec.backbone, spec.image_size or speed.size)[0]
    pixels = (spec.image_size or speed.size) ** 2 / speed.size**2
    evaluate = speed.evaluated or 3 * speed.images
    loss = speed.loss
    if loss is None:
        loss = 6 * spec.batch_size * _loss_parameters(spec) / PRODUCTS[speed.device]
    ranking = 2 * work.compared * (spec.embedding_size or features) / PRODUCTS[speed.device]
    images = pixels * (work.trained / speed.images + work.evaluated / evaluate)
    return (images + work.steps * loss + ranking) / 3600


def _training_images(spec: RunSpec) -> int:
    (train, classes), _ = _counts(spec)
    return train if spec.fold is None else round(train * (1 - math.ceil(classes / spec.folds) / classes))


def _work(spec: RunSpec) -> Work:
    (everything, _), test = _counts(spec)
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
    each = held_out if schedule.validation_only else held_out + test
    final = 2 if schedule.validation_only else 1
    evaluated = evaluations * each + final * (held_out + test)
    compared = evaluations * (held_out**2 + (each > held_out) * test**2) + final * (held_out**2 + test**2)
    if spec.neighbours:  # every epoch looks for them among all training images
        evaluated += train * math.ceil(steps / per_epoch)
        compared += train**2 * math.ceil(steps / per_epoch)
    trained = steps * spec.batch_size * spec.views * scheme_builder(spec.scheme, spec.scheme_options).relative_cost
    if spec.train_from:  # what lies below is computed once for every view
        share, _ = _of_tail(spec)
        trained = round(share * trained)
        evaluated = round(share * evaluated) + (spec.cached_views or 1) * everything + test
    # the last look tells what is published, unless it looks at validation classes only; the best weights have their own
    finals = 2 if schedule.validation_only else int(spec.restore_best) + int(not evaluations)
    return Work(steps / per_epoch, steps, trained, evaluated, compared, evaluations, finals)


def _of_tail(spec: RunSpec) -> tuple[float, float]:
    """What a tail has of its network's multiplications, and of the numbers that an image leaves in its layers."""
    if spec.train_from == "head":
        return 0.0, 0.0
    return _tail(spec.backbone, spec.train_from, spec.image_size or THROUGHPUT.get(spec.backbone, OTHERS).size)


def _counts(spec: RunSpec) -> tuple[tuple[int, int], int]:
    """(training images, classes) and test images: of the complete set, or of the reader's own images as they lie."""
    if manifests.is_own(spec.dataset):
        return _own_counts(spec.dataset)
    base = benchmark_of(spec.dataset)
    if base == "glyphs":
        from dmlrepro.datasets import glyphs

        train, test = glyphs.characters()
        each = spec.images_per_class or 24
        return (len(train) * each, len(train)), len(test) * each
    parts = manifests.OFFICIAL[base]
    return parts["train"], sum(images for part, (images, _) in parts.items() if part != "train")


@functools.cache
def _own_counts(name: str) -> tuple[tuple[int, int], int]:  # anew in every plan
    manifest = manifests.load(name)
    return (len(manifest.indices("train")), manifest.num_train_classes), len(manifest.indices("test"))


def _gigabytes(spec: RunSpec, gpus: int) -> float:
    """Parameters with their optimiser state, and the activations of a GPU's share of a batch, kept for backward."""
    features, parameters, activations = _network(spec.backbone, spec.image_size or 32)
    dim = spec.embedding_size or features
    parameters += features * dim + _loss_parameters(spec)
    batch = 256 if spec.loss is None else spec.batch_size * spec.views
    activations *= 0 if spec.loss is None else _of_tail(spec)[1] if spec.train_from else 1
    kept = activations * math.ceil(batch / gpus) * 4
    return (parameters * BYTES_PER_PARAMETER + kept) / 1e9


def _loss_of(spec: RunSpec) -> tuple[str, str, int, int]:
    """A loss by plain values: name, options, classes, dimension."""
    (_, classes), _ = _counts(spec)
    dim = spec.embedding_size or _network(spec.backbone, spec.image_size or 32)[0]
    return spec.loss, json.dumps(dict(spec.loss_options)), classes, dim


def _loss(loss: str, options: str, classes: int, dim: int) -> nn.Module:
    return build_loss(RunSpec("glyphs", loss=loss, loss_options=json.loads(options), steps=1), classes, dim)


def _loss_parameters(spec: RunSpec) -> int:
    return 0 if spec.loss is None else _numbers_of(*_loss_of(spec))


@functools.cache
def _numbers_of(*loss) -> int:
    return sum(parameter.numel() for parameter in _loss(*loss).parameters())


@functools.cache
def _network(name: str, size: int) -> tuple[int, int, int]:
    """Features, parameters, and numbers that one image leaves in the layers of a backbone."""
    with torch.device("meta"):
        trunk, preprocess = backbones.build_trunk(name, None, 3)
        network = backbones.EmbeddingNet(trunk, None, preprocess)
    left, _ = _passes(trunk, len(preprocess.mean), size)
    return network.num_features, sum(p.numel() for p in trunk.parameters()), left[-1]


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
    found: tuple[list[int], list[int]] = [], []

    def note(*_) -> None:
        found[0].append(sum(left))
        found[1].append(counter.get_total_flops() // 2)

    for module in trunk.modules():
        if not any(True for _ in module.children()):
            module.register_forward_hook(lambda _, __, output: left.append(output.numel()))
    for path in paths:
        trunk.get_submodule(path).register_forward_pre_hook(note)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        trunk(torch.empty(1, channels, size, size))
    note()
    return found


def table_of(notebooks: Iterable[str], params_of, **how) -> tuple[pd.DataFrame, list[str]]:
    """The plan of notebooks by name and its `problems`; `params_of(params_class)` gives the parameters each is run
    with, `how` goes to `plan`."""
    specs, trials = {}, {}
    for name in notebooks:
        notebook = catalogue.find(name)
        params = params_of(notebook.params)
        if getattr(params, "search_trials", 0):  # what it finds has the cost of the default values
            trials[params.notebook] = params.search_trials
        specs[params.notebook] = notebook.specs_untrained(params)
    return plan(specs, trials, **how), problems(spec for runs in specs.values() for spec in runs)
