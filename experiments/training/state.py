"""How far a run is: when its schedule has it do what, its curves, its evaluations and its best weights."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dmlrepro.retrieval import MEASURES
from experiments.files import atomic_write
from experiments.training.algorithms.supervised import Algorithm
from experiments.training.spec import RunSpec

CHECKPOINTED = ("step", "terms", "history", "best")


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
        # such an evaluation leaves no rows behind unless they are kept, only what they decide: it asks for no more
        unread = self.validation_only and not spec.keep_history
        measures = set(MEASURES) & ({spec.monitor} if unread else set(MEASURES))
        self.evaluation: dict[str, Any] = {"validation_only": self.validation_only, "measures": measures}

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
        content = {name: getattr(self, name) for name in CHECKPOINTED} | {"spec": self.spec.as_dict()}
        content["modules"] = {name: module.state_dict() for name, module in self.algorithm.modules().items()}
        content |= {"algorithm": self.algorithm.state(), "optimizer": self.optimizer.state_dict()}
        with atomic_write(path) as temporary:
            torch.save(content, temporary)

    def load(self, path: Path) -> str:
        """Go on from a checkpoint; returns what is wrong with a damaged one, after which this state is of no use.

        Raises ValueError for a checkpoint of another spec.
        """
        try:
            with zipfile.ZipFile(path) as members:  # torch does not look at the checksums that it writes
                if member := members.testzip():
                    return f"the checksum of {member} is wrong"
            content = torch.load(path, map_location=self.device, weights_only=True)
            if content["spec"] == self.spec.as_dict():
                for name in CHECKPOINTED:
                    setattr(self, name, content[name])
                for name, module in self.algorithm.modules().items():
                    module.load_state_dict(content["modules"][name])
                self.algorithm.load_state(content["algorithm"])
                self.optimizer.load_state_dict(content["optimizer"])
                return ""
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # torch, zipfile and pickle raise whatever a damaged file makes them stumble over
            return f"{type(error).__name__}: {error}"
        raise ValueError(f"checkpoint {path} belongs to another spec; remove it")


def monitored(history: list[dict], criterion: str) -> list[dict]:
    """The rows of the main network's criterion, in the order of the evaluations."""
    return [row for row in history if row["metric"] == criterion and "network" not in row]


def is_spent(scores: Sequence[float], patience: int | None) -> bool:
    """Whether `patience` evaluations have followed the best one, the first of equals."""
    return patience is not None and len(scores) > 0 and len(scores) - 1 - scores.index(max(scores)) >= patience


def copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
