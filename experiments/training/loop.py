"""The training loop: a pure function of a RunSpec.

`train(spec)` loads the images, builds network, loss and optimiser, takes the steps with their evaluations, and returns
what a notebook needs. Every random draw is a function of `spec.seed` and the step, so a run that was interrupted and
resumed is the run that was not.
"""

import itertools
import math
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dmlrepro.losses.checks import LEAST_NORM
from experiments.files import atomic_write
from experiments.networks import backbones
from experiments.networks.backbones import Network
from experiments.progress import reporter
from experiments.training import activations, batches, inference
from experiments.training.algorithms.supervised import Algorithm
from experiments.training.builders import OPTIMIZERS, algorithm_module
from experiments.training.device import device_for_training, replayed, reuse_freed_memory
from experiments.training.spec import RunSpec

CHECKPOINT_SECONDS = 300.0  # between two checkpoints
CHECKPOINTED = ("step", "terms", "history", "best")  # of a State, beside modules, optimiser and algorithm
Evaluation = tuple[list[dict], dict[str, Tensor]]  # rows, and embeddings by network, see `inference.evaluate`


@dataclass
class Outcome:
    """What a run leaves behind. Embeddings and states are those of the last step, or of the best with restore_best."""

    # {selection, step, metric, value}; recalls and precisions are fractions. Rows of a further network that the
    # algorithm evaluates have its name as `network`
    rows: list[dict]
    losses: Tensor  # (steps,) float32, the training loss of every step
    # {name: (steps,) float32}, the terms that add up to it, 0 where one was missing; empty if there is only one
    terms: dict[str, Tensor]
    # {network name: (N, D)} raw embeddings of the test images, in manifest order; the main one is named ""
    embeddings: dict[str, Tensor]
    # state dicts of the algorithm's modules, `network` and `loss` among them, and what else it records
    states: dict[str, dict[str, Tensor]]
    cost: dict[str, float]  # seconds, steps_per_second, on a GPU gpu_gigabytes; never part of a deterministic table


class Schedule:
    """Which step has which learning rate, and after which there is an evaluation; epochs become steps here."""

    def __init__(self, spec: RunSpec, steps_per_epoch: int):
        def steps(epochs: float | None) -> int:
            return round((epochs or 0) * steps_per_epoch)

        self.total = spec.steps if spec.steps is not None else steps(spec.epochs)
        self.warmup = steps(spec.warmup_epochs)
        self.drops, self.drop = [steps(epochs) for epochs in spec.lr_drop_epochs], spec.lr_drop
        self.eval_every = spec.eval_every or (spec.eval_every_epochs and max(steps(spec.eval_every_epochs), 1))
        self.validation_only = spec.fold is not None and spec.restore_best

    def rate(self, step: int) -> float:
        """Factor of every learning rate."""
        return self.drop ** sum(step >= at for at in self.drops)

    def evaluates(self, step: int) -> bool:
        return bool(self.eval_every and (step % self.eval_every == 0 or step == self.total))


class State:
    """How far a run is. A checkpoint of it is enough to continue as if nothing had happened."""

    def __init__(self, spec: RunSpec, algorithm: Algorithm, optimizer: torch.optim.Optimizer, schedule: Schedule):
        self.spec, self.algorithm, self.optimizer, self.schedule = spec, algorithm, optimizer, schedule
        self.device = next(algorithm.network.parameters()).device
        self.step = 0
        self.terms: dict[str, Tensor] = {}  # the curve of each term of the loss
        self.history: list[dict] = []  # the rows of all evaluations
        self.best: dict[str, Any] = {}  # step and module states of the best evaluation, where they are restored

    @property
    def losses(self) -> Tensor:
        """(steps,) the sum of the terms at every step so far."""
        return sum((curve[: self.step] for curve in self.terms.values()), torch.zeros(self.step, device=self.device))

    def log(self, terms: dict[str, Tensor]) -> None:
        """Keep the terms of a step's loss and count the step."""
        for name, value in terms.items():
            if name not in self.terms:
                self.terms[name] = torch.zeros(self.schedule.total, device=self.device)
            self.terms[name][self.step] = value
        self.step += 1

    def record(self, rows: list[dict]) -> list[float]:
        """Keep an evaluation, and the weights if it is the best yet; returns the monitored metric of all so far."""
        self.history += rows
        criterion = self.spec.monitor if self.spec.fold is None else f"val {self.spec.monitor}"
        scores = [row["value"] for row in monitored(self.history, criterion)]
        if self.spec.restore_best and not is_spent(scores, 1):
            self.best = {"step": self.step, "modules": {n: copied(m) for n, m in self.algorithm.modules().items()}}
        return scores

    def restore_best(self) -> int:
        """Put the best weights back, where there was an evaluation, and return the step of those that are there now."""
        if not self.best:
            return self.step
        for name, module in self.algorithm.modules().items():
            module.load_state_dict(self.best["modules"][name])
        return self.best["step"]

    def check_finite(self) -> None:
        """The loss is looked at once per evaluation, not per step: reading it back would stall the device."""
        losses = self.losses
        if len(bad := (~losses.isfinite()).nonzero().flatten()):
            raise FloatingPointError(f"the loss became {losses[bad[0]]} at step {bad[0]}; lower lr or loss_lr")

    def save(self, path: Path) -> None:
        content = {
            "run": {name: getattr(self, name) for name in CHECKPOINTED},
            "algorithm": {name: getattr(self.algorithm, name) for name in self.algorithm.checkpointed},
            "modules": {name: module.state_dict() for name, module in self.algorithm.modules().items()},
            "optimizer": self.optimizer.state_dict(),
        }
        with atomic_write(path) as temporary:
            torch.save(content, temporary)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint of the same spec, written on this kind of device. ValueError: it is damaged."""
        if not is_intact(path):
            raise ValueError(f"checkpoint {path} is damaged; remove it, and its run starts from the first step")
        content = torch.load(path, weights_only=True)
        vars(self).update(content["run"])
        vars(self.algorithm).update(content["algorithm"])
        for name, module in self.algorithm.modules().items():
            module.load_state_dict(content["modules"][name])
        self.optimizer.load_state_dict(content["optimizer"])


def is_intact(checkpoint: Path) -> bool:
    """Whether the checksums in a checkpoint fit: torch writes them and does not look at them."""
    try:
        with zipfile.ZipFile(checkpoint) as members:
            return members.testzip() is None
    except zipfile.BadZipFile:
        return False


def monitored(history: list[dict], criterion: str) -> list[dict]:
    """The rows of the main network's criterion, in the order of the evaluations."""
    return [row for row in history if row["metric"] == criterion and "network" not in row]


def is_spent(scores: Sequence[float], patience: int | None) -> bool:
    """Whether `patience` evaluations have followed the best one, the first of equals."""
    return patience is not None and len(scores) > 0 and len(scores) - 1 - scores.index(max(scores)) >= patience


def copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def train(spec: RunSpec, *, checkpoint: Path | None = None, progress: str | None = None) -> Outcome:
    """Train and evaluate one spec.

    Args:
        checkpoint: a file of this spec to resume from when it exists, written every few minutes; left to the caller to
            remove.
        progress: what a line every half minute calls the run; None: no such lines.

    Raises:
        ValueError: naming the spec's field that does not fit the dataset, the backbone or the loss; or a checkpoint
            that is damaged.
        FloatingPointError: when the loss, a weight or an embedding stops being finite.
    """
    started = time.perf_counter()
    reuse_freed_memory()
    device = device_for_training()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    task, network = prepare(spec, device)
    if spec.loss is None:
        scores, embeddings = inference.evaluate(task, {"": network}, 0)
        rows, states = [row | {"selection": "last"} for row in scores], {"network": copied(network.cpu())}
        return Outcome(rows, torch.zeros(0), {}, embeddings, states, {"seconds": time.perf_counter() - started})
    state = begin(task, network)
    if checkpoint is not None and checkpoint.exists():
        state.load(checkpoint)
    if device.type == "cuda" and spec.freeze_batchnorm:
        some = task.as_trained(torch.arange(spec.batch_size).repeat(spec.views), "augmentation", 0)
        replayed(network, some.to(device), half=spec.precision == "bfloat16")
    first, stepping = state.step, time.perf_counter()
    latest = optimise(task, state, checkpoint, progress)
    stepping = time.perf_counter() - stepping
    rows, embeddings = final_scores(task, state, latest)
    cost = {"seconds": time.perf_counter() - started, "steps_per_second": (state.step - first) / max(stepping, 1e-9)}
    if device.type == "cuda":
        cost["gpu_gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
    terms = {name: values[: state.step].cpu() for name, values in state.terms.items() if len(state.terms) > 1}
    states = {name: copied(module.cpu()) for name, module in state.algorithm.modules().items()}
    return Outcome(rows, state.losses.cpu(), terms, embeddings, states | state.algorithm.records(), cost)


def prepare(spec: RunSpec, device: torch.device) -> tuple[batches.Task, Network]:
    """The images of a run and its network before the first step."""
    manifest = batches.load_dataset(spec)
    whole = inference.build_network(spec, manifest).to(device)
    inference.perturb(whole, spec)
    network, stored = (whole, None) if spec.train_from is None else activations.cut(spec, whole, manifest)
    task = batches.Task(spec, manifest, stored)
    if spec.precision == "bfloat16" and spec.train_from is None:  # these two save a third of a step on a CPU
        network.to(memory_format=torch.channels_last)
        if spec.freeze_batchnorm:
            backbones.fuse_batchnorm(network)
    if spec.head_start:
        inference.start_head(task, network, whitened=spec.head_start == "whitened")
    return task, network


def begin(task: batches.Task, network: Network) -> State:
    """A run before its first step: with its loss, in the algorithm that trains it, and its optimiser."""
    spec = task.spec
    module = algorithm_module(spec.algorithm)
    algorithm = module.Algorithm(spec, task, network, module.Options(**spec.algorithm_options))
    return State(spec, algorithm, build_optimizer(spec, network, algorithm.loss), Schedule(spec, task.steps_per_epoch))


def optimise(task: batches.Task, state: State, checkpoint: Path | None, progress: str | None) -> Evaluation | None:
    """Take the steps that are left; returns the evaluation of the last one, None if nothing was evaluated after it."""
    spec, algorithm, schedule, first, latest = state.spec, state.algorithm, state.schedule, state.step, None
    trunk = [p for p in algorithm.network.train().trunk.parameters() if p.requires_grad]
    report, saved_at = reporter(f"steps of {progress}", schedule.total, first), time.monotonic()
    for images, labels in run_batches(task, state):
        if state.step in (first, schedule.warmup):
            for parameter in trunk:
                parameter.requires_grad_(state.step >= schedule.warmup)
        for group in state.optimizer.param_groups:
            group["lr"] = group["base_lr"] * schedule.rate(state.step)
        state.log(train_step(state, images, labels))
        algorithm.after_step()
        latest = None
        if schedule.evaluates(state.step):
            state.check_finite()
            only = schedule.validation_only
            latest = inference.evaluate(task, algorithm.evaluated(), state.step, validation_only=only)
            scores = state.record(latest[0])
            algorithm.after_evaluation(state.step, scores[-1])
            if is_spent(scores, spec.patience):
                break
        if state.step < schedule.total and not algorithm.continues(state.step):
            break
        if checkpoint is not None and time.monotonic() - saved_at > CHECKPOINT_SECONDS:
            state.save(checkpoint)
            saved_at = time.monotonic()
        if progress is not None:
            report(state.step)
    state.check_finite()
    return latest


def train_step(state: State, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """One optimisation step; returns the terms of the loss, still on the device so that nothing waits for them."""
    spec, algorithm = state.spec, state.algorithm
    parameters = [parameter for group in state.optimizer.param_groups for parameter in group["params"]]
    state.optimizer.zero_grad()
    with torch.autocast(images.device.type, torch.bfloat16, enabled=spec.precision == "bfloat16"):
        try:
            terms = algorithm.objective(images, labels)
        except ValueError as error:  # a loss names the argument; here the cause and the step are known
            norms = torch.linalg.vector_norm(algorithm.network(images).detach().float(), dim=-1)
            if norms.min() >= LEAST_NORM and all(x.isfinite().all() for x in (norms, *algorithm.loss.parameters())):
                raise
            message = f"training diverged before step {state.step} ({error}); lower lr or loss_lr"
            raise FloatingPointError(message) from error
        loss = sum(terms.values(), torch.zeros((), device=images.device))
    loss.backward()
    if spec.loss_clip_value is not None:
        nn.utils.clip_grad_value_(algorithm.loss.parameters(), spec.loss_clip_value)
    if spec.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, spec.clip_value)
    if spec.clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, spec.clip_norm)
    state.optimizer.step()
    return {name: term.detach() for name, term in terms.items()}


def run_batches(task: batches.Task, state: State) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (images, labels) of the steps that are left; `algorithm.before_epoch` runs before each epoch."""
    first, total, per_epoch = state.step, state.schedule.total, task.steps_per_epoch
    # batches of neighbours depend on the network at their epoch's start, others are one stream
    whole = task.train_batches(first, total, state.device) if task.spec.neighbours is None else None
    for epoch in range(first // per_epoch, math.ceil(total / per_epoch)):
        if epoch * per_epoch >= first:  # else it was begun before an interruption, with what the checkpoint holds
            state.algorithm.before_epoch(epoch)
        start, end = max(epoch * per_epoch, first), min((epoch + 1) * per_epoch, total)
        drawn = whole or task.train_batches(start, end, state.device, state.algorithm.neighbours)
        yield from itertools.islice(drawn, end - start)


def final_scores(task: batches.Task, state: State, latest: Evaluation | None) -> Evaluation:
    """Rows of every selection, and the embeddings of the weights that the run leaves behind, which it puts in place.

    Where there were several evaluations, the best by validation and by test follow the last step. A score picked on the
    test set is marked `test_best` and never stands alone.
    """
    if latest is None or state.schedule.validation_only:
        latest = inference.evaluate(task, state.algorithm.evaluated(), state.step)
    last, embeddings = latest
    chosen = [("last", last)]
    for selection, criterion in (("val_best", f"val {state.spec.monitor}"), ("test_best", state.spec.monitor)):
        if candidates := monitored(state.history, criterion):
            step = max(candidates, key=lambda row: row["value"])["step"]  # the first of equals
            chosen.append((selection, [row for row in state.history if row["step"] == step]))
    if state.spec.restore_best:
        if (best_step := state.restore_best()) < state.step:
            latest = inference.evaluate(task, state.algorithm.evaluated(), best_step)
        best, embeddings = latest
        if state.schedule.validation_only:  # these are the only looks at the test set
            chosen = [("last", last), ("val_best", best)]
    if state.spec.keep_history:
        chosen.append(("every", state.history))
    return [row | {"selection": selection} for selection, rows in chosen for row in rows], embeddings


def build_optimizer(spec: RunSpec, network: Network, loss: nn.Module) -> torch.optim.Optimizer:
    """One group for each pair of learning rate and weight decay among trunk, head and the loss's parameters."""
    together: dict[tuple[float, float], list] = defaultdict(list)  # every group costs a pass of the optimiser
    together[spec.lr, spec.weight_decay] += [p for p in network.trunk.parameters() if p.requires_grad]
    together[spec.head_lr or spec.lr, spec.weight_decay] += network.head.parameters()
    for name, parameter in loss.named_parameters():
        rate = spec.loss_lr.get(name, spec.loss_lr.get("*", spec.lr))
        together[rate, spec.loss_weight_decay or 0.0].append(parameter)
    groups = [
        {"params": parameters, "lr": rate, "base_lr": rate, "weight_decay": decay}
        for (rate, decay), parameters in together.items()
        if parameters
    ]
    return OPTIMIZERS[spec.optimizer](groups, lr=spec.lr)
