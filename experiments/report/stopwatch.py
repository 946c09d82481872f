"""The parts of a run, timed on this machine."""

import functools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from experiments import timing
from experiments.networks import backbones
from experiments.report import throughput, work
from experiments.report.throughput import Throughput
from experiments.training import inference, loop
from experiments.training.device import device_for_training, reuse_freed_memory
from experiments.training.spec import RunSpec

STEPS, SECONDS = 20, 60  # a measurement has so many steps, or as many as begin in this time,
SECONDS_OF_A_KIND = 2  # and on a run's own images, where there are many kinds, in this


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


def measured(spec: RunSpec) -> Throughput | Parts:
    """What one device of this machine does: the parts of the run on its own images, a second or two for each kind of
    run; where images or weights are not here, steps of the network and of the loss on random images.

    Raises:
        ValueError: a batch does not fit in the memory of the device.
    """
    device, kind = device_for_training(), kind_of(spec)
    if kind not in _TIMED and not work.problems([spec]):
        with timing.threads(1 if device.type == "cpu" else None):
            _TIMED[kind] = _timed(spec, device)
    if kind in _TIMED:
        return _TIMED[kind]
    size = spec.image_size or throughput.of_backbone(spec.backbone).size
    network = spec.backbone, spec.embedding_size, spec.pooling, size, spec.batch_size * spec.views, spec.precision
    try:
        with timing.threads(1 if device.type == "cpu" else None):
            train, evaluate = _network_seconds(*network)
            seconds = 0.0 if spec.loss is None else _loss_seconds(*work.loss_of(spec), spec.batch_size)
    except torch.OutOfMemoryError as error:
        raise ValueError(f"a batch of {network[4]} images of {size} pixels does not fit; lower batch_size") from error
    batch = spec.batch_size * spec.views
    kind = "gpu" if device.type == "cuda" else "cpu"
    return Throughput(batch / train, size, kind, "measured here", evaluated=batch / evaluate, loss=seconds)


_TIMED: dict[str, Parts] = {}  # by kind, while the process runs
# what changes a run's numbers and not, or hardly, the cost of its parts
FREE = ("seed", "replica", "fold", "steps", "epochs", "lr", "head_lr", "loss_lr", "weight_decay", "loss_weight_decay")
FREE += ("label_noise", "patience", "restore_best", "keep_history", "eval_every", "eval_every_epochs", "lr_drop_epochs")


def kind_of(spec: RunSpec) -> str:
    """What the cost of a run's parts depends on: not its seed, nor numbers with a fraction among its loss's options."""
    kept = {name: value for name, value in spec.as_dict().items() if name not in FREE}
    options = {name: value for name, value in spec.loss_options.items() if not isinstance(value, float)}
    looks = loop.Schedule(spec, 1)
    return json.dumps(
        [kept | {"loss_options": options}, spec.fold is None, looks.validation_only, sorted(looks.measures)]
    )


def _timed(spec: RunSpec, device: torch.device) -> Parts:
    """The parts of a run, each done a few times and nothing stored but activations."""
    reuse_freed_memory()
    clock = functools.partial(timing.seconds, device=device.type)
    before = clock(lambda: loop.prepare(spec, device))
    start = clock(lambda: loop.prepare(spec, device))
    task, network = loop.prepare(spec, device)
    kind = "gpu" if device.type == "cuda" else "cpu"
    if spec.loss is None:
        final = clock(lambda: inference.evaluate(task, {"": network}, 0))
        return Parts(start, max(before - start, 0.0), 0.0, 0.0, 0.0, final, kind)
    state = loop.begin(task, network)
    scheme, schedule = state.scheme, state.schedule
    epoch = clock(lambda: scheme.before_epoch(0))
    network.train()
    stream = task.train_batches(0, min(STEPS, task.steps_per_epoch), device, scheme.neighbours)
    taken: list[float] = []

    def step() -> None:
        loop.train_step(state, *next(stream))
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
def _network_seconds(
    backbone: str, embedding_size: int | None, pooling: str, size: int, batch: int, precision: str
) -> tuple[float, float]:
    """Seconds of a training step without its loss, and of the evaluation of as many images."""
    device = device_for_training()
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
    device = device_for_training()
    module = work.loss_module(loss, options, classes, dim).to(device)
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
