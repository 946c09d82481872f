"""The training loop: a pure function of a RunSpec.

A RunSpec is plain data. `train(spec)` loads the dataset, builds the network and the loss, optimises, evaluates, and
returns everything a notebook needs: metric rows, the loss curve, the embeddings of the evaluated images, and the
learned weights. Every random draw is a function of `spec.seed` and the step, so a run that was interrupted and
resumed is the run that was not.
"""

import functools
import itertools
import operator
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dmlrepro.losses.checks import LEAST_NORM
from experiments import variables
from experiments.files import set_aside
from experiments.networks.backbones import Network
from experiments.progress import reporter
from experiments.training import activations, batches, inference
from experiments.training.builders import OPTIMIZERS, scheme_builder
from experiments.training.device import device_for_training, reuse_freed_memory
from experiments.training.spec import RunSpec
from experiments.training.state import Schedule, State, copied, monitored

CHECKPOINT_SECONDS = 300.0  # between two checkpoints, unless DMLREPRO_CHECKPOINT_SECONDS says otherwise


Evaluation = tuple[list[dict], dict[str, Tensor]]  # rows, and embeddings by network, see `inference.evaluate`


@dataclass
class Outcome:
    """What a run leaves behind. Embeddings and states are those of the last step, or of the best with restore_best.

    rows: list of {selection, step, metric, value}; recalls and precisions are fractions. Rows of a further network that
        the scheme evaluates have its name as `network`.
    losses: (steps,) float32, the training loss of every step.
    terms: {name: (steps,) float32}, the terms that add up to it, 0 where one was missing; empty if there is only one.
    embeddings: {network name: (N, D)} raw embeddings of the test images, in manifest order; the main one is named "".
    states: state dicts of the scheme's modules, `network` and `loss` among them.
    cost: {seconds, steps_per_second}, on a GPU also gpu_gigabytes; never part of a deterministic table.
    """

    rows: list[dict]
    losses: Tensor
    terms: dict[str, Tensor]
    embeddings: dict[str, Tensor]
    states: dict[str, dict[str, Tensor]]
    cost: dict[str, float]


def train(spec: RunSpec, *, checkpoint: Path | None = None, progress: str | None = None) -> Outcome:
    """Train and evaluate one spec.

    Args:
        checkpoint: a file to resume from when it exists, written every few minutes; left to the caller to remove. A
            damaged one is set aside, and the run begins anew.
        progress: what a line every half minute calls the run; None: no such lines.

    Raises:
        ValueError: naming the spec's field that does not fit the dataset, the backbone or the loss.
        FloatingPointError: when the loss, a weight or an embedding stops being finite.
    """
    started = time.perf_counter()
    reuse_freed_memory()
    device = device_for_training()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    task, network = prepare(spec, device)
    if spec.loss is None:
        rows, embeddings = inference.evaluate(task, {"": network}, 0)
        cost = {"seconds": time.perf_counter() - started}
        return Outcome(selected(rows, "last"), torch.zeros(0), {}, embeddings, {"network": copied(network.cpu())}, cost)

    state = begin(task, network)
    if checkpoint is not None and checkpoint.exists() and (flaw := state.load(checkpoint)):
        set_aside(checkpoint, flaw)
        return train(spec, checkpoint=checkpoint, progress=progress)  # `state` may hold a part of it
    first, stepping = state.step, time.perf_counter()
    latest = optimise(task, state, checkpoint, progress)
    stepping = time.perf_counter() - stepping
    rows, embeddings = final_scores(task, state, latest)
    seconds = time.perf_counter() - started
    cost = {"seconds": seconds, "steps_per_second": (state.step - first) / max(stepping, 1e-9)}
    if device.type == "cuda":
        cost["gpu_gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
    terms = {name: values[: state.step].cpu() for name, values in state.terms.items() if len(state.terms) > 1}
    states = {name: copied(module.cpu()) for name, module in state.scheme.modules().items()}
    return Outcome(rows, state.losses.cpu(), terms, embeddings, states, cost)


def prepare(spec: RunSpec, device: torch.device) -> tuple[batches.Task, Network]:
    """The images of a run and its network before the first step."""
    manifest = batches.load_dataset(spec)
    whole = inference.build_network(spec, manifest).to(device)
    inference.perturb(whole, spec)
    network, stored = (whole, None) if spec.train_from is None else activations.cut(spec, whole, manifest)
    task = batches.Task(spec, manifest, stored)
    if spec.head_start:
        inference.start_head(task, network, whitened=spec.head_start == "whitened")
    if spec.loss is not None and spec.compile:
        torch.compiler.reset()  # torch compiles a function a few times per process, then no more; runs share `forward`
        network.compile()
    return task, network


def begin(task: batches.Task, network: Network) -> State:
    """A run before its first step: with its loss, in the scheme that trains it, and its optimiser."""
    spec = task.spec
    scheme = scheme_builder(spec.scheme, spec.scheme_options)(spec, task, network, **spec.scheme_options)
    return State(spec, scheme, build_optimizer(spec, network, scheme.loss), Schedule(spec, task.steps_per_epoch))


def optimise(task: batches.Task, state: State, checkpoint: Path | None, progress: str | None) -> Evaluation | None:
    """Take the steps that are left; returns the evaluation of the last one, None if nothing was evaluated after it."""
    spec, scheme, schedule, first, latest = state.spec, state.scheme, state.schedule, state.step, None
    trunk = [parameter for parameter in scheme.network.train().trunk.parameters() if parameter.requires_grad]
    report, saved_at = reporter(f"steps of {progress}", schedule.total, first), time.monotonic()
    pause = variables.number("DMLREPRO_CHECKPOINT_SECONDS", CHECKPOINT_SECONDS)
    for images, labels in run_batches(task, state):
        if state.step in (first, schedule.warmup):
            for parameter in trunk:
                parameter.requires_grad_(state.step >= schedule.warmup)
        for group in state.optimizer.param_groups:
            group["lr"] = group["base_lr"] * schedule.rate(state.step)
        state.log(train_step(state, images, labels))
        scheme.after_step()
        latest, solved = None, False
        if schedule.evaluates(state.step):
            state.check_finite()
            only, measures = schedule.validation_only, schedule.measures
            latest = inference.evaluate(task, scheme.evaluated(), state.step, validation_only=only, measures=measures)
            state.record(latest[0])
            if state.is_spent(spec.patience):
                break
            solved = state.is_spent(scheme.problem_patience, state.before_problem)
        if state.step < schedule.total and (solved or state.outlasts(scheme.problem_steps)):
            if not scheme.next_problem((state.best_of_problem or state.now()) | {"ended": state.step}):
                break
            state.begin_problem()
            latest = None  # the networks may have changed
        if checkpoint is not None and time.monotonic() - saved_at > pause:
            state.save(checkpoint)
            saved_at = time.monotonic()
        if progress is not None:
            report(state.step)
    state.check_finite()
    return latest


def train_step(state: State, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """One optimisation step; returns the terms of the loss, still on the device so that nothing waits for them."""
    spec, scheme = state.spec, state.scheme
    parameters = [parameter for group in state.optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        parameter.grad = None
    embedded = []

    def embed(some: Tensor) -> Tensor:
        embedded.append(scheme.network(some))
        return embedded[-1]

    with torch.autocast(images.device.type, torch.bfloat16, enabled=spec.precision == "bfloat16"):
        try:
            terms = scheme.objective(embed, images, labels)
        except ValueError as error:  # a loss names the argument; here the cause and the step are known
            norms = [torch.linalg.vector_norm(values.detach().float(), dim=-1) for values in embedded]
            sound = all(values.isfinite().all() for values in (*norms, *scheme.loss.parameters()))
            if sound and not any(values.min() < LEAST_NORM for values in norms):
                raise
            message = f"training diverged before step {state.step} ({error}); lower lr or loss_lr"
            raise FloatingPointError(message) from error
        loss = functools.reduce(operator.add, terms.values())
    loss.backward()
    if spec.loss_clip_value is not None:
        nn.utils.clip_grad_value_(scheme.loss.parameters(), spec.loss_clip_value)
    if spec.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, spec.clip_value)
    if spec.clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, spec.clip_norm)
    state.optimizer.step()
    return {name: term.detach() for name, term in terms.items()}


def run_batches(task: batches.Task, state: State) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (images, labels) of the steps that are left; `scheme.before_epoch` runs before each epoch.

    Batches of neighbours are drawn an epoch at a time, because they depend on the network; others are one stream.
    """
    first, total, scheme, device = state.step, state.schedule.total, state.scheme, state.device
    whole = task.train_batches(first, total, device) if task.spec.neighbours is None else None
    for start in range(first - first % task.steps_per_epoch, total, task.steps_per_epoch):
        if start >= first:  # else the epoch was begun before an interruption, with what the checkpoint holds
            scheme.before_epoch(start // task.steps_per_epoch)
        begin, end = max(start, first), min(start + task.steps_per_epoch, total)
        if whole is None:
            yield from task.train_batches(begin, end, device, scheme.neighbours)
        else:
            yield from itertools.islice(whole, end - begin)


def final_scores(task: batches.Task, state: State, latest: Evaluation | None) -> Evaluation:
    """Rows of every selection, and the embeddings of the weights that the run leaves behind, which it puts in place.

    Beside the last step these are the best evaluations by validation and by test, where there were several. A score
    picked on the test set is marked `test_best` and never stands alone: `last` is always there.
    """
    if latest is None or state.schedule.validation_only:
        latest = inference.evaluate(task, state.scheme.evaluated(), state.step)
    last, embeddings = latest
    rows = selected(last, "last")
    for selection, criterion in (("val_best", f"val {state.spec.monitor}"), ("test_best", state.spec.monitor)):
        if candidates := monitored(state.history, criterion):
            step = max(candidates, key=lambda row: row["value"])["step"]  # the first of equals
            rows += selected((row for row in state.history if row["step"] == step), selection)
    if state.spec.restore_best:
        best_step = state.restore_best()
        if best_step < state.step:
            latest = inference.evaluate(task, state.scheme.evaluated(), best_step)
        best, embeddings = latest
        if state.schedule.validation_only:  # these are the only looks at the test set
            rows = selected(last, "last") + selected(best, "val_best")
    if state.spec.keep_history:
        rows += selected(state.history, "every")
    return rows, embeddings


def selected(rows: Iterable[dict], selection: str) -> list[dict]:
    return [row | {"selection": selection} for row in rows]


def build_optimizer(spec: RunSpec, network: Network, loss: nn.Module) -> torch.optim.Optimizer:
    """One group for each pair of learning rate and weight decay among trunk, head and the loss's parameters."""
    together: dict[tuple[float, float], list] = {}  # every group costs a pass of the optimiser
    together[spec.lr, spec.weight_decay] = [p for p in network.trunk.parameters() if p.requires_grad]
    head_lr = spec.lr if spec.head_lr is None else spec.head_lr
    together.setdefault((head_lr, spec.weight_decay), []).extend(network.head.parameters())
    for name, parameter in loss.named_parameters():
        rate = spec.loss_lr.get(name, spec.loss_lr.get("*", spec.lr))
        together.setdefault((rate, spec.loss_weight_decay or 0.0), []).append(parameter)
    groups = [
        {"params": parameters, "lr": rate, "base_lr": rate, "weight_decay": decay}
        for (rate, decay), parameters in together.items()
        if parameters
    ]
    return OPTIMIZERS[spec.optimizer](groups, lr=spec.lr)
