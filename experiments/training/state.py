"""How far a run is: when its schedule has it do what, its curves, its evaluations and its best weights."""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dmlrepro.retrieval import MEASURES
from experiments.files import replacing
from experiments.training.spec import RunSpec

if TYPE_CHECKING:
    from experiments.training.schemes.supervised import Scheme

CHECKPOINTED = ("step", "terms", "history", "best", "best_of_problem", "before_problem", "problem_began")


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
        self.measures = {spec.monitor} & set(MEASURES) if unread else set(MEASURES)

    def rate(self, step: int) -> float:
        """Factor of every learning rate."""
        return self.drop ** sum(step >= at for at in self.drops)

    def evaluates(self, step: int) -> bool:
        return bool(self.eval_every and (step % self.eval_every == 0 or step == self.total))


class State:
    """How far a run is. A checkpoint of it is enough to continue as if nothing had happened."""

    def __init__(self, spec: RunSpec, scheme: "Scheme", optimizer: torch.optim.Optimizer, schedule: Schedule):
        self.spec, self.scheme, self.optimizer, self.schedule = spec, scheme, optimizer, schedule
        self.device = next(scheme.network.parameters()).device
        self.step = 0
        self.terms: dict[str, Tensor] = {}  # the curve of each term of the loss
        self.history: list[dict] = []  # the rows of all evaluations
        self.best: Any = None  # step and module states of the best evaluation, if anybody will ask for them
        self.best_of_problem: dict | None = None  # the same for the evaluations since the scheme's problem began
        self.before_problem = 0  # how many evaluations there were before it
        self.problem_began = 0  # the step

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

    def values(self, first: int = 0) -> list[float]:
        """The monitored metric of the evaluations, from number `first` on."""
        criterion = self.spec.monitor if self.spec.fold is None else f"val {self.spec.monitor}"
        return [row["value"] for row in monitored(self.history, criterion)][first:]

    def is_spent(self, patience: int | None, first: int = 0) -> bool:
        """Whether `patience` evaluations have followed the best of those from number `first` on, the first of equals"""
        if patience is None:
            return False
        values = self.values(first)
        return len(values) - 1 - values.index(max(values)) >= patience

    def outlasts(self, problem_steps: int | None) -> bool:
        """Whether the scheme's problem has taken that many steps."""
        return problem_steps is not None and self.step - self.problem_began >= problem_steps

    def now(self) -> dict:
        """The step and the states of the scheme's modules."""
        return {"step": self.step, "modules": {name: copied(module) for name, module in self.scheme.modules().items()}}

    def record(self, rows: list[dict]) -> None:
        """Keep an evaluation, and the weights where it is the best yet and somebody will ask for them."""
        self.history += rows
        problems = (self.scheme.problem_patience, self.scheme.problem_steps) != (None, None)
        if (self.spec.restore_best or problems) and not self.is_spent(1, self.before_problem):
            self.best_of_problem = self.now()
            if not self.is_spent(1):
                self.best = self.best_of_problem

    def begin_problem(self) -> None:
        """The scheme's patience and steps start anew; the best evaluation of the run stays."""
        self.before_problem, self.problem_began = len(self.values()), self.step
        self.best_of_problem = None

    def restore_best(self) -> int:
        """Put the best weights back, of a run that ended before its first evaluation the last; returns their step."""
        best = self.best or self.now()
        for name, module in self.scheme.modules().items():
            module.load_state_dict(best["modules"][name])
        return best["step"]

    def check_finite(self) -> None:
        """The loss is looked at once per evaluation, not per step: reading it back would stall the device."""
        losses = self.losses
        if len(bad := (~losses.isfinite()).nonzero().flatten()):
            raise FloatingPointError(f"the loss became {losses[bad[0]]} at step {bad[0]}; lower lr or loss_lr")

    def save(self, path: Path) -> None:
        content = {name: getattr(self, name) for name in CHECKPOINTED} | {
            "spec": self.spec.as_dict(),
            "modules": {name: module.state_dict() for name, module in self.scheme.modules().items()},
            "scheme": self.scheme.state(),
            "optimizer": self.optimizer.state_dict(),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
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
            if same := content["spec"] == self.spec.as_dict():
                for name in CHECKPOINTED:
                    setattr(self, name, content[name])
                for name, module in self.scheme.modules().items():
                    module.load_state_dict(content["modules"][name])
                self.scheme.load_state(content["scheme"])
                self.optimizer.load_state_dict(content["optimizer"])
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # torch, zipfile and pickle raise whatever a damaged file makes them stumble over
            return f"{type(error).__name__}: {error}"
        if not same:
            raise ValueError(f"checkpoint {path} belongs to another spec; remove it")
        return ""


def monitored(history: list[dict], criterion: str) -> list[dict]:
    """The rows of the main network's criterion, in the order of the evaluations."""
    return [row for row in history if row["metric"] == criterion and "network" not in row]


def copied(module: nn.Module) -> dict[str, Tensor]:
    """A module's state as it is now, whatever is trained later."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
