"""The training loop: a pure function of a RunSpec.

A RunSpec is plain data. `train(spec)` loads the dataset, builds the network and the loss, optimises, evaluates, and
returns everything a notebook needs: metric rows, the loss curve, the embeddings of the evaluated images, and the
learned weights. Every random draw is a function of `spec.seed` and the step, so a run that was interrupted and
resumed is the run that was not, and N ranks (see distributed.py) draw what one would.
"""

import ctypes
import functools
import itertools
import operator
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dmlrepro import retrieval
from dmlrepro.losses.checks import LEAST_NORM
from experiments.files import set_aside
from experiments.networks.backbones import Network
from experiments.progress import reporter
from experiments.training import activations, batches, distributed, inference
from experiments.training.builders import OPTIMIZERS, scheme_builder
from experiments.training.spec import RunSpec
from experiments.training.state import State, copied, monitored

if TYPE_CHECKING:
    from experiments.training.schemes.supervised import Scheme

# between two checkpoints; a tenth of it is enough at the end of an epoch
CHECKPOINT_SECONDS = float(os.environ.get("DMLREPRO_CHECKPOINT_SECONDS", 300))


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


@functools.cache
def reuse_freed_memory() -> None:
    """Let glibc keep freed blocks below 32 MB (its limit) for the next step instead of returning them to the kernel.

    Without this, fresh pages for the same activations are a third of every step on a CPU.
    """
    libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):  # not musl
        trim_threshold, mmap_threshold = -1, -3
        libc.mallopt(mmap_threshold, 2**25)
        libc.mallopt(trim_threshold, 2**31 - 1)


def train(spec: RunSpec, *, checkpoint: Path | None = None, progress: str | None = None) -> Outcome:
    """Train and evaluate one spec.

    Args:
        checkpoint: a file to resume from when it exists, written every few minutes; left to the caller to remove. A
            damaged one is set aside, and the run begins anew.
        progress: description of the progress bar; None or a stderr that is not a terminal: silent.

    Raises:
        ValueError: naming the spec's field that does not fit the dataset, the backbone or the loss.
        FloatingPointError: when the loss, a weight or an embedding stops being finite.
    """
    started = time.perf_counter()
    reuse_freed_memory()
    device = distributed.device_for_training()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    task, network = prepare(spec, device)
    if spec.loss is None:
        rows, embeddings = inference.evaluate(task, {"": network}, 0)
        cost = {"seconds": time.perf_counter() - started}
        return Outcome(selected(rows, "last"), torch.zeros(0), {}, embeddings, {"network": _on_cpu(network)}, cost)

    scheme = scheme_builder(spec.scheme, spec.scheme_options)(spec, task, network, **spec.scheme_options)
    schedule = Schedule(spec, task.steps_per_epoch)
    state = State(spec, scheme, build_optimizer(spec, network, scheme.loss), schedule.total, device)
    if checkpoint is not None and checkpoint.exists():
        if flaw := distributed.from_first(lambda: state.load(checkpoint)):
            if distributed.rank() == 0:
                set_aside(checkpoint, flaw)
            return train(spec, checkpoint=checkpoint, progress=progress)  # `state` may hold a part of it
        if distributed.rank() > 0:
            state.load(checkpoint)
    first, stepping = state.step, time.perf_counter()
    latest = optimise(task, state, schedule, device, checkpoint, progress)
    stepping = time.perf_counter() - stepping
    rows, embeddings = final_scores(task, state, schedule, latest)
    cost = {
        "seconds": time.perf_counter() - started,
        "steps_per_second": (state.step - first) / max(stepping, 1e-9),
    }
    if device.type == "cuda":
        cost["gpu_gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
    terms = state.terms if len(state.terms) > 1 else {}
    return Outcome(
        rows=rows,
        losses=state.losses[: state.step].cpu(),
        terms={name: values[: state.step].cpu() for name, values in terms.items()},
        embeddings=embeddings,
        states={name: _on_cpu(module) for name, module in scheme.modules().items()},
        cost=cost,
    )


def prepare(spec: RunSpec, device: torch.device) -> tuple[batches.Task, Network]:
    """The images of a run and its network before the first step."""
    with distributed.first_rank_first():
        manifest = batches.load_dataset(spec)
        whole = inference.build_network(spec, manifest).to(device)
        inference.perturb(whole, spec)
        network, stored = (whole, None) if spec.train_from is None else activations.cut(spec, whole, manifest)
        task = batches.Task(spec, manifest, stored)
        if spec.head_start:
            inference.start_head(task, network, whitened=spec.head_start == "whitened")
    if spec.loss is not None and not spec.freeze_batchnorm:
        network = distributed.synchronised_batchnorm(network, device)
    if spec.loss is not None and spec.compile:
        torch.compiler.reset()  # torch compiles a function a few times per process, then no more; runs share `forward`
        network.compile()
    return task, network


def optimise(
    task: batches.Task,
    state: State,
    schedule: "Schedule",
    device: torch.device,
    checkpoint: Path | None,
    progress: str | None,
) -> tuple[list[dict], dict[str, Tensor]] | None:
    """Take the steps that are left; returns the evaluation of the last one, None if nothing was evaluated after it."""
    spec, scheme, optimizer = state.spec, state.scheme, state.optimizer
    network = scheme.network.train()
    trunk = [parameter for parameter in network.trunk.parameters() if parameter.requires_grad]
    saved_at = time.monotonic()
    first, latest = state.step, None
    with _bar(progress, schedule.total, first) as advance:
        for images, labels in run_batches(task, scheme, first, schedule.total, device):
            if state.step in (first, schedule.warmup):
                for parameter in trunk:
                    parameter.requires_grad_(state.step >= schedule.warmup)
                replica = distributed.parallel(network)
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * schedule.rate(state.step)
            state.log(train_step(spec, scheme, replica, optimizer, images, labels, state.step))
            scheme.after_step()
            advance()
            latest, solved = None, False
            if schedule.evaluates(state.step):
                state.check_finite()
                latest = rows, _ = inference.evaluate(
                    task,
                    scheme.evaluated(),
                    state.step,
                    validation_only=schedule.validation_only,
                    measures=schedule.measures,
                )
                state.record(rows)
                if state.is_spent(spec.patience):
                    break
                solved = state.is_spent(scheme.problem_patience, state.before_problem)
            if state.step < schedule.total and (solved or state.outlasts(scheme.problem_steps)):
                if not scheme.next_problem((state.best_of_problem or state.now()) | {"ended": state.step}):
                    break
                state.begin_problem()
                latest = None  # the networks may have changed
            age = time.monotonic() - saved_at
            if checkpoint is not None and age > CHECKPOINT_SECONDS * (0.1 if schedule.epoch_ends(state.step) else 1):
                state.save(checkpoint)
                saved_at = time.monotonic()
    state.check_finite()
    return latest


def final_scores(
    task: batches.Task, state: State, schedule: "Schedule", latest: tuple[list[dict], dict[str, Tensor]] | None
) -> tuple[list[dict], dict[str, Tensor]]:
    """Rows of every selection, and the embeddings of the weights that the run leaves behind, which it puts in place."""
    if latest is None or schedule.validation_only:
        latest = inference.evaluate(task, state.scheme.evaluated(), state.step)
    last, embeddings = latest
    rows = select_rows(last, state.history, state.spec.monitor)
    if state.spec.restore_best:
        best_step = state.restore_best()
        if best_step < state.step:
            latest = inference.evaluate(task, state.scheme.evaluated(), best_step)
        best, embeddings = latest
        if schedule.validation_only:  # these are the only looks at the test set
            rows = selected(last, "last") + selected(best, "val_best")
    if state.spec.keep_history:
        rows += selected(state.history, "every")
    return rows, embeddings


def select_rows(last: list[dict], history: list[dict], monitor: str) -> list[dict]:
    """Rows of the last step, and of the best evaluation by validation and by test when there were several.

    A score picked on the test set is marked `test_best` and never stands alone: `last` is always there.
    """
    rows = selected(last, "last")
    for selection, criterion in (("val_best", f"val {monitor}"), ("test_best", monitor)):
        candidates = monitored(history, criterion)
        if candidates:
            best = max(candidates, key=lambda row: row["value"])["step"]  # the first of equals
            rows += selected((row for row in history if row["step"] == best), selection)
    return rows


def selected(rows: Iterable[dict], selection: str) -> list[dict]:
    return [row | {"selection": selection} for row in rows]


def run_batches(
    task: batches.Task, scheme: "Scheme", first: int, total: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (this rank's images, all labels) of steps first..total-1; `scheme.before_epoch` runs before each epoch.

    Batches of neighbours are drawn an epoch at a time, because they depend on the network; others are one stream.
    """
    whole = task.train_batches(first, total, device) if task.spec.neighbours is None else None
    for start in range(first - first % task.steps_per_epoch, total, task.steps_per_epoch):
        if start >= first:  # else the epoch was begun before an interruption, with what the checkpoint holds
            scheme.before_epoch(start // task.steps_per_epoch)
        begin, end = max(start, first), min(start + task.steps_per_epoch, total)
        if whole is None:
            yield from task.train_batches(begin, end, device, scheme.neighbours)
        else:
            yield from itertools.islice(whole, end - begin)


def train_step(
    spec: RunSpec,
    scheme: "Scheme",
    replica: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    step: int,
) -> dict[str, Tensor]:
    """One optimisation step; returns the terms of the loss, still on the device so that nothing waits for them."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        parameter.grad = None
    embedded = []

    def embed(some: Tensor) -> Tensor:
        embedded.append(distributed.gather(replica(some), len(labels)))
        return embedded[-1]

    with torch.autocast(images.device.type, torch.bfloat16, enabled=spec.precision == "bfloat16"):
        try:
            terms = scheme.objective(embed, images, labels)
        except ValueError as error:  # a loss names the argument; here the cause and the step are known
            norms = [torch.linalg.vector_norm(values.detach().float(), dim=-1) for values in embedded]
            sound = all(values.isfinite().all() for values in (*norms, *scheme.loss.parameters()))
            if not sound or any(values.min() < LEAST_NORM for values in norms):
                raise FloatingPointError(
                    f"training diverged before step {step} ({error}); lower lr or loss_lr"
                ) from error
            raise
        loss = functools.reduce(operator.add, terms.values())
    loss.backward()
    distributed.average_gradients(scheme.loss)
    if spec.loss_clip_value is not None:
        nn.utils.clip_grad_value_(scheme.loss.parameters(), spec.loss_clip_value)
    if spec.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, spec.clip_value)
    if spec.clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, spec.clip_norm)
    optimizer.step()
    return {name: term.detach() for name, term in terms.items()}


class Schedule:
    """Which step has which learning rate, and after which there is an evaluation; epochs become steps here."""

    def __init__(self, spec: RunSpec, steps_per_epoch: int):
        def steps(epochs: float | None) -> int:
            return round((epochs or 0) * steps_per_epoch)

        self.steps_per_epoch = steps_per_epoch
        self.total = spec.steps if spec.steps is not None else steps(spec.epochs)
        self.warmup = steps(spec.warmup_epochs)
        self.drops, self.drop = [steps(epochs) for epochs in spec.lr_drop_epochs], spec.lr_drop
        self.eval_every = spec.eval_every or (spec.eval_every_epochs and max(steps(spec.eval_every_epochs), 1))
        self.validation_only = spec.fold is not None and spec.restore_best
        # such an evaluation leaves no rows behind unless they are kept, only what they decide: it asks for no more
        unread = self.validation_only and not spec.keep_history
        self.measures = {spec.monitor} & set(retrieval.MEASURES) if unread else set(retrieval.MEASURES)

    def rate(self, step: int) -> float:
        """Factor of every learning rate."""
        return self.drop ** sum(step >= at for at in self.drops)

    def evaluates(self, step: int) -> bool:
        return bool(self.eval_every and (step % self.eval_every == 0 or step == self.total))

    def epoch_ends(self, step: int) -> bool:
        return step % self.steps_per_epoch == 0


def build_optimizer(spec: RunSpec, network: Network, loss: nn.Module) -> torch.optim.Optimizer:
    """One group for each pair of learning rate and weight decay among trunk, head and the loss's parameters."""
    names = dict(loss.named_parameters())
    together: dict[tuple[float, float], list] = {}  # every group costs a pass of the optimiser
    trunk = [parameter for parameter in network.trunk.parameters() if parameter.requires_grad]
    together.setdefault((spec.lr, spec.weight_decay), []).extend(trunk)
    together.setdefault((spec.lr if spec.head_lr is None else spec.head_lr, spec.weight_decay), []).extend(
        network.head.parameters()
    )
    for name, parameter in names.items():
        rate = spec.loss_lr.get(name, spec.loss_lr.get("*", spec.lr))
        together.setdefault((rate, spec.loss_weight_decay or 0.0), []).append(parameter)
    groups = [
        {"params": parameters, "lr": rate, "base_lr": rate, "weight_decay": decay}
        for (rate, decay), parameters in together.items()
        if parameters
    ]
    return OPTIMIZERS[spec.optimizer](groups, lr=spec.lr)


def _on_cpu(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.cpu() for name, value in copied(module).items()}


@contextmanager
def _bar(description: str | None, total: int, initial: int) -> Iterator[Callable[[], object]]:
    """A function to call after each step: it moves a bar on a terminal; elsewhere a line tells every half minute."""
    if description is None or distributed.rank() > 0:
        yield lambda: None
    elif sys.stderr.isatty():
        from tqdm import tqdm

        with tqdm(total=total, initial=initial, desc=description) as bar:
            yield bar.update
    else:
        steps, report = itertools.count(initial + 1), reporter(f"steps of {description}", total, initial)
        yield lambda: report(next(steps))
