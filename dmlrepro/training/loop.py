"""The training loop: a pure function of a RunSpec.

A RunSpec is plain data. `train(spec)` loads the dataset, builds the network and the loss, optimises, evaluates, and
returns everything a notebook needs: metric rows, the loss curve, the embeddings of the evaluated images, and the
learned weights. Every random draw is a function of `spec.seed` and the step, so a run that was interrupted and
resumed is the run that was not, and N ranks (see distributed.py) draw what one would.
"""

import ctypes
import functools
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dmlrepro.files import replacing
from dmlrepro.training import batches, distributed, inference
from dmlrepro.training.spec import OPTIMIZERS, RunSpec, build_loss

CHECKPOINT_SECONDS = 300  # at the end of an epoch after a tenth of it


@dataclass
class Outcome:
    """What a run leaves behind.

    rows: list of {selection, step, metric, value}; recalls and precisions are fractions.
    losses: (steps,) float32, the training loss of every step.
    embeddings: (N, D) raw embeddings of the test images, in manifest order of the test split.
    network_state, loss_state: state dicts.
        All three are of the last step, with restore_best of the best evaluation.
    cost: {seconds, steps_per_second}, on a GPU also gpu_gigabytes; never part of a deterministic table.
    """

    rows: list[dict]
    losses: Tensor
    embeddings: Tensor
    network_state: dict[str, Tensor]
    loss_state: dict[str, Tensor]
    cost: dict[str, float]


@functools.cache
def reuse_freed_memory() -> None:
    """Let glibc keep freed blocks below 32 MB (its limit) for the next step instead of returning them to the kernel.

    Without this, fresh pages for the same activations are a third of every step on a CPU.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):  # not musl
        trim_threshold, mmap_threshold = -1, -3
        libc.mallopt(mmap_threshold, 2**25)
        libc.mallopt(trim_threshold, 2**31 - 1)


def train(spec: RunSpec, *, checkpoint: Path | None = None, progress: str | None = None) -> Outcome:
    """Train and evaluate one spec.

    Args:
        checkpoint: a file to resume from when it exists, written every few minutes; left to the caller to remove.
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
    with distributed.first_rank_first():
        manifest = batches.load_dataset(spec)
        network = inference.build_network(spec, manifest).to(device)
        inference.perturb(network, spec)
        features = inference.trunk_features(spec, network, manifest) if spec.freeze_trunk else None
        task = batches.Task(spec, manifest, features)
    if spec.freeze_trunk:
        network = inference.HeadOnly(network)
    if spec.loss is None:
        rows, embeddings = inference.evaluate(task, network, 0)
        cost = {"seconds": time.perf_counter() - started}
        return Outcome(selected(rows, "last"), torch.zeros(0), embeddings, _on_cpu(network), {}, cost)

    if not spec.freeze_batchnorm:
        network = distributed.synchronised_batchnorm(network, device)
    if spec.compile:
        torch.compiler.reset()  # torch compiles a function a few times per process, then no more; runs share `forward`
        network.compile()
    loss = build_loss(spec, task.num_classes, network.embedding_size).to(device)
    if spec.proxies_from_class_means:
        if not hasattr(loss, "initialize_proxies"):
            raise ValueError(f"proxies_from_class_means: the loss {spec.loss} has no initialize_proxies(class_means)")
        means = inference.class_means(task, network)
        loss.initialize_proxies(distributed.from_first(lambda: means).to(device))  # ranks may differ by rounding
    optimizer = build_optimizer(spec, network, loss)
    schedule = Schedule(spec, task.steps_per_epoch)
    state = State(spec, network, loss, optimizer, schedule.total)
    if checkpoint is not None and checkpoint.exists():
        state.load(checkpoint)

    network.train()
    trunk = [parameter for parameter in network.trunk.parameters() if parameter.requires_grad]
    saved_at = time.monotonic()
    first, latest = state.step, None
    stepping = time.perf_counter()
    with _bar(progress, schedule.total, first) as bar:
        for batch, labels in run_batches(task, network, state, first, schedule.total):
            if state.step in (first, schedule.warmup):
                for parameter in trunk:
                    parameter.requires_grad_(state.step >= schedule.warmup)
                replica = distributed.parallel(network)
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * schedule.rate(state.step)
            state.losses[state.step] = train_step(spec, replica, loss, optimizer, batch, labels, state.step)
            state.step += 1
            bar.update()
            latest = None
            if schedule.evaluates(state.step):
                state.check_finite()
                latest = rows, _ = inference.evaluate(
                    task, network, state.step, validation_only=schedule.validation_only
                )
                if state.record(rows):
                    break
            age = time.monotonic() - saved_at
            if checkpoint is not None and age > CHECKPOINT_SECONDS * (0.1 if schedule.epoch_ends(state.step) else 1):
                state.save(checkpoint)
                saved_at = time.monotonic()
    stepping = time.perf_counter() - stepping
    state.check_finite()
    if latest is None or schedule.validation_only:
        latest = inference.evaluate(task, network, state.step)
    last, embeddings = latest
    rows = select_rows(last, state.history, spec.monitor)
    if spec.restore_best:
        best_step = state.restore_best()
        best, embeddings = inference.evaluate(task, network, best_step)
        if schedule.validation_only:  # these are the only looks at the test set
            rows = selected(last, "last") + selected(best, "val_best")
    outcome = Outcome(
        rows=rows,
        losses=state.losses[: state.step].cpu(),
        embeddings=embeddings,
        network_state=_on_cpu(network),
        loss_state=_on_cpu(loss),
        cost={
            "seconds": time.perf_counter() - started,
            "steps_per_second": (state.step - first) / max(stepping, 1e-9),
        }
        | ({"gpu_gigabytes": torch.cuda.max_memory_allocated() / 1e9} if device.type == "cuda" else {}),
    )
    return outcome


def select_rows(last: list[dict], history: list[dict], monitor: str) -> list[dict]:
    """Rows of the last step, and of the best evaluation by validation and by test when there were several.

    A score picked on the test set is marked `test_best` and never stands alone: `last` is always there.
    """
    rows = selected(last, "last")
    for selection, criterion in (("val_best", f"val {monitor}"), ("test_best", monitor)):
        candidates = [row for row in history if row["metric"] == criterion]
        if candidates:
            best = max(candidates, key=lambda row: row["value"])["step"]  # the first of equals
            rows += selected((row for row in history if row["step"] == best), selection)
    return rows


def selected(rows: Iterable[dict], selection: str) -> list[dict]:
    return [row | {"selection": selection} for row in rows]


def run_batches(task: batches.Task, network, state: "State", first: int, total: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Steps first..total-1; with groups of neighbours an epoch at a time, because these depend on the network."""
    device = state.losses.device
    if task.spec.neighbours is None:
        yield from task.train_batches(first, total, device)
        return
    for start in range(first - first % task.steps_per_epoch, total, task.steps_per_epoch):
        if start >= first:  # else the epoch was begun before an interruption, with what the checkpoint holds
            state.neighbours = inference.neighbours(task, network)
        end = min(start + task.steps_per_epoch, total)
        yield from task.train_batches(max(start, first), end, device, state.neighbours)


def train_step(spec, network, loss, optimizer, batch: Tensor, labels: Tensor, step: int) -> Tensor:
    """One optimisation step; returns the loss, still on the device so that nothing waits for it."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        parameter.grad = None
    with torch.autocast(batch.device.type, torch.bfloat16, enabled=spec.precision == "bfloat16"):
        embeddings = distributed.gather(network(batch), len(labels))
        try:
            value = loss(embeddings, labels)
        except ValueError as error:  # a loss names the argument; here the cause and the step are known
            if not all(values.isfinite().all() for values in (embeddings, *loss.parameters())):
                raise FloatingPointError(f"training diverged before step {step}; lower lr or loss_lr") from error
            raise
    value.backward()
    distributed.average_gradients(loss)
    if spec.loss_clip_value is not None:
        nn.utils.clip_grad_value_(loss.parameters(), spec.loss_clip_value)
    if spec.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, spec.clip_value)
    if spec.clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, spec.clip_norm)
    optimizer.step()
    return value.detach()


class Schedule:
    """What happens at which step."""

    def __init__(self, spec: RunSpec, steps_per_epoch: int):
        def steps(epochs: float) -> int:
            return round(epochs * steps_per_epoch)

        self.steps_per_epoch = steps_per_epoch
        self.total = spec.steps if spec.steps is not None else steps(spec.epochs)
        self.warmup = steps(spec.warmup_epochs)
        self.drops, self.drop = [steps(epochs) for epochs in spec.lr_drop_epochs], spec.lr_drop
        self.eval_every = spec.eval_every or (spec.eval_every_epochs and max(steps(spec.eval_every_epochs), 1))
        self.validation_only = spec.fold is not None and spec.restore_best

    def rate(self, step: int) -> float:
        """Factor of every learning rate."""
        return self.drop ** sum(step >= at for at in self.drops)

    def evaluates(self, step: int) -> bool:
        return bool(self.eval_every) and (step % self.eval_every == 0 or step == self.total)

    def epoch_ends(self, step: int) -> bool:
        return step % self.steps_per_epoch == 0


def build_optimizer(spec: RunSpec, network, loss) -> torch.optim.Optimizer:
    """One group for each pair of learning rate and weight decay among trunk, head and the loss's parameters."""
    names = dict(loss.named_parameters())
    unknown = set(spec.loss_lr) - set(names) - {"*"}
    if unknown:
        raise ValueError(f"loss_lr names {sorted(unknown)}, but {spec.loss} has the parameters {sorted(names)}")
    together: dict[tuple[float, float], list] = {}  # every group costs a pass of the optimiser
    trunk = [parameter for parameter in network.trunk.parameters() if parameter.requires_grad]
    together.setdefault((spec.lr, spec.weight_decay), []).extend(trunk)
    together.setdefault((spec.head_lr or spec.lr, spec.weight_decay), []).extend(network.head.parameters())
    for name, parameter in names.items():
        rate = spec.loss_lr.get(name, spec.loss_lr.get("*", spec.lr))
        together.setdefault((rate, spec.loss_weight_decay), []).append(parameter)
    groups = [
        {"params": parameters, "lr": rate, "base_lr": rate, "weight_decay": decay}
        for (rate, decay), parameters in together.items()
        if parameters
    ]
    return OPTIMIZERS[spec.optimizer](groups, lr=spec.lr)


class State:
    """What a checkpoint holds: enough to continue as if nothing had happened."""

    def __init__(self, spec, network, loss, optimizer, total: int):
        self.spec, self.network, self.loss, self.optimizer = spec, network, loss, optimizer
        self.step = 0
        self.losses = torch.zeros(total, device=next(network.parameters()).device)
        self.history: list[dict] = []
        self.best: dict | None = None  # step, value and weights of the best evaluation, for restore_best
        self.neighbours: Tensor | None = None  # of every train image in the current epoch

    def record(self, rows: list[dict]) -> bool:
        """Keep an evaluation; True when the monitored metric has not improved for `patience` of them."""
        self.history += rows
        criterion = self.spec.monitor if self.spec.fold is None else f"val {self.spec.monitor}"
        values = [row["value"] for row in self.history if row["metric"] == criterion]
        best = int(np.argmax(values))  # the first of equals
        if self.spec.restore_best and best == len(values) - 1:
            self.best = {"step": self.step, "network": _copy(self.network), "loss": _copy(self.loss)}
        return self.spec.patience is not None and len(values) - 1 - best >= self.spec.patience

    def restore_best(self) -> int:
        """Put the best weights back; returns their step."""
        self.network.load_state_dict(self.best["network"])
        self.loss.load_state_dict(self.best["loss"])
        return self.best["step"]

    def check_finite(self) -> None:
        """Looked at once per evaluation, not per step: reading the loss back would stall the device."""
        bad = (~self.losses[: self.step].isfinite()).nonzero()
        if len(bad):
            raise FloatingPointError(
                f"the loss became {self.losses[bad[0, 0]].item()} at step {bad[0, 0].item()}; lower lr or loss_lr"
            )

    def save(self, path: Path) -> None:
        if distributed.rank() > 0:
            return
        content = {
            "spec": self.spec.as_dict(),
            "step": self.step,
            "losses": self.losses,
            "history": self.history,
            "network": self.network.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best": self.best,
            "neighbours": self.neighbours,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            torch.save(content, temporary)

    def load(self, path: Path) -> None:
        content = torch.load(path, map_location=self.losses.device, weights_only=True)
        if content["spec"] != self.spec.as_dict():
            changed = [name for name, value in self.spec.as_dict().items() if content["spec"].get(name) != value]
            raise ValueError(f"checkpoint {path} belongs to another spec (differs in {', '.join(changed)}); remove it")
        self.step, self.losses, self.history = content["step"], content["losses"], content["history"]
        self.network.load_state_dict(content["network"])
        self.loss.load_state_dict(content["loss"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.best, self.neighbours = content["best"], content["neighbours"]
        if self.neighbours is not None:
            self.neighbours = self.neighbours.cpu()  # the sampler is there


def _on_cpu(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.cpu() for name, value in _copy(module).items()}


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _bar(description: str | None, total: int, initial: int):
    from tqdm import tqdm

    # disable=None: silent when stderr is not a terminal
    silent = description is None or distributed.rank() > 0
    return tqdm(total=total, initial=initial, desc=description, disable=True if silent else None)
