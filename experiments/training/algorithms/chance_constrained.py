"""Repeated projections (CCP): a proxy-based problem is solved, the next one starts at samples that its proxies miss.

Paper      Gürbüz, Can and Alatan, "Deep Metric Learning with Chance Constraints", arXiv 2209.09060 (2022).
Equations  Algorithms 1 and 2, Eq. 14; Sec. IV-D (a projection ends with the patience of its validation score).
Deviations As in the released code there is no penalty during the first problem, and training goes on from the last
           weights while theta*, rho* are the best ones. Unlike there, proxies start at random samples instead of those
           of largest norm, the k-center search compares clipped embeddings, proxies have no weight decay, and a pool
           is drawn again for every problem, not from a queue. The optimiser keeps its moments.
           A problem may end after a number of steps too: a short run with a fast network leaves its proxies behind long
           before its scores say so. BatchNorm that learns begins with statistics of the training images.
           Retrieval is scored by cosine as for every method; clipped embeddings inside the ball would rank otherwise.

The loss is one of losses/chance_constrained.py, which is given proxies, or any proxy loss of the package, whose own
proxies start anew (an extension): those losses see directions, so directions are compared and norms are kept.
"""

from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import model_validator
from torch import Tensor, nn

from dmlrepro.losses.baselines import proxies_of
from dmlrepro.losses.chance_constrained import clip_to_unit_ball, greedy_k_center, projection_penalty
from experiments.checks import Count, Number
from experiments.networks.backbones import Network
from experiments.training import batches, inference
from experiments.training.algorithms import supervised
from experiments.training.loop import copied, is_spent
from experiments.training.seeds import derive_seed
from experiments.training.spec import RunSpec

CHUNK = 256  # images of a pool that are embedded at a time


class Options(supervised.Options):
    proxies_per_class: Count | None = None  # of a loss that is given its proxies, None: 8; others bring their own
    # b, samples per class among which the next proxies are chosen; equal to the number of proxies they are random. A
    # class with fewer images has some several times, in other crops where training crops
    pool_size: Count = 12
    # lambda, weight of the penalty lambda / 2 ||theta - theta*||^2 from the second problem on; theta* are the best
    # weights of the last problem
    projection: Number = 2e-4
    problem_patience: Count | None = 3  # evaluations without a better score that end a problem; None: they end none
    problem_steps: Count | None = None  # steps that end a problem, if nothing did before; None: they end none
    projections: Count | None = None  # training ends after so many problems; None: when the run does
    reset: bool = False  # a problem starts at theta*, not at the last weights of the one before
    batch_weight: Number = 0.0  # weight of the same loss within the batch (released code: 0.1)
    # the chosen samples stand in for the proxies, embedded again in every step beside the batch (Sec. V-B, MNIST): for
    # few classes
    samples: bool = False

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.proxies_per_class is not None and self.pool_size < self.proxies_per_class:
            raise ValueError(
                f"pool_size must be at least proxies_per_class = {self.proxies_per_class}, got {self.pool_size}; "
                "proxies start at different samples of the pool"
            )
        return self


class Algorithm(supervised.Algorithm):
    """Alternating problems with proxies re-initialised by greedy k-center; one problem only if nothing ends it.

    Raises ValueError for a spec without evaluations or with a validation fold of one class, whose scores could not end
    a problem; for a loss without proxies; for a pool smaller than the number of proxies.
    """

    checkpointed = ("neighbours", "problem", "began", "scores", "best", "anchors", "chosen", "solved")

    def __init__(self, spec: RunSpec, task: batches.Task, network: Network, options: Any):
        super().__init__(spec, task, network, options)
        self.problem, self.began = 0, 0  # its number, and the step before its first one
        self.scores: list[float] = []  # of its evaluations
        self.best: dict[str, Any] = {}  # step and states at the best of them
        self.anchors: dict[str, Tensor] = {}  # theta*; none in the first problem
        # of each problem that another one followed the step of theta*, and the step after which that one began
        self.solved: list[list[int]] = []
        if options.problem_patience is not None:
            if not (spec.eval_every or spec.eval_every_epochs):
                raise ValueError("problem_patience counts evaluations: give eval_every or eval_every_epochs")
            if len(np.unique(task.manifest.labels[task.validation])) == 1:
                raise ValueError(
                    f"folds={spec.folds} leaves one class for validation, where every score is 1; lower folds"
                )
        self.given_proxies = hasattr(self.loss, "of_pairs")
        if self.given_proxies:
            number = options.proxies_per_class or 8
            self.loss = GivenProxies(self.loss, task.num_classes, number, network.embedding_size)
            self.loss.to(next(network.parameters()).device)
        elif options.proxies_per_class is not None or options.batch_weight or options.samples:
            raise ValueError(
                f"proxies_per_class, batch_weight and samples are for losses that are given proxies; {spec.loss} is not"
            )
        proxies = proxies_of(self.loss)
        if proxies is None:
            raise ValueError(f"loss {spec.loss} has no proxies that could be initialised anew")
        number = proxies.shape[1]
        if options.pool_size < number:
            raise ValueError(f"pool_size must be at least the {number} proxies of a class, got {options.pool_size}")
        self.chosen = self._drawn(number)  # (C, M) train images at which the proxies of the problem start
        if not spec.proxies_from_class_means:
            inference.calibrate_batchnorm(task, network)
            self._start_proxies(self._pool(self.chosen))

    def objective(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if self.options.samples:
            both = self.network(torch.cat([images, self._images(self.chosen.flatten()).to(images.device)]))
            embeddings, samples = both.tensor_split([len(labels)])
            terms = {"loss": self.loss.pairs(embeddings, labels, ref_emb=samples, ref_labels=self.loss.classes)}
        else:
            embeddings = self.network(images)
            terms = {"loss": self.loss(embeddings, labels)}
        if self.options.batch_weight:
            terms["batch"] = self.options.batch_weight * self.loss.pairs(embeddings, labels)
        if self.anchors and self.options.projection:
            moving = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
            solution = [self.anchors[name] for name in moving]
            terms["projection"] = projection_penalty(moving.values(), solution, self.options.projection)
        return terms

    def after_evaluation(self, step: int, score: float) -> None:
        self.scores.append(score)
        if (self.options.problem_patience or self.options.problem_steps) and not is_spent(self.scores, 1):
            self.best = self._now(step)

    def continues(self, step: int) -> bool:
        lasted = self.options.problem_steps is not None and step - self.began >= self.options.problem_steps
        return not (lasted or is_spent(self.scores, self.options.problem_patience)) or self.next_problem(step)

    def _now(self, step: int) -> dict[str, Any]:
        return {"step": step, "network": copied(self.network), "loss": copied(self.loss)}

    def next_problem(self, step: int) -> bool:
        if self.problem + 1 == self.options.projections:
            return False
        last = self._now(step)
        best = self.best or last
        self.problem, self.began, self.scores, self.best = self.problem + 1, step, [], {}
        self.network.load_state_dict(best["network"])
        self.loss.load_state_dict(best["loss"])
        proxies: Any = proxies_of(self.loss)
        converged = self._pool(self.chosen) if self.options.samples else self._compared(proxies.detach().clone())
        drawn = self._drawn(self.options.pool_size)
        pool, classes = self._pool(drawn), torch.arange(len(drawn))[:, None]
        self.anchors = best["network"]
        self.solved.append([best["step"], step])
        picks = greedy_k_center(pool, converged, converged.shape[1]).cpu()
        if not self.options.reset:
            self.network.load_state_dict(last["network"])
        self.loss.load_state_dict(last["loss"])
        self.chosen = drawn[classes, picks]
        self._start_proxies(pool[classes, picks])
        return True

    def records(self) -> dict[str, dict[str, Tensor]]:
        rows = torch.tensor(self.solved, dtype=torch.float64).reshape(-1, 2)
        return {"solved": {"_extra_state": rows}}  # the name that stored runs have

    def _drawn(self, size: int) -> Tensor:
        """(C, size) random train images of each class, drawn anew for every problem."""
        generator = torch.Generator().manual_seed(derive_seed(self.spec.seed, "pool", self.problem))
        return samples_of_each_class(torch.from_numpy(self.task.train_labels), size, generator)

    def _images(self, chunk: Tensor, number: int = 0) -> Tensor:
        """The train images of a chunk in the crops that they have during this problem."""
        return self.task.as_trained(chunk, "pool images", self.problem, number)

    @torch.no_grad()
    def _pool(self, drawn: Tensor) -> Tensor:
        """(C, size, D) embeddings of train images (C, size) in training's augmentation, in which they are compared."""
        chunks = drawn.flatten().tensor_split(-(-drawn.numel() // CHUNK))
        numbered = ((chunk, number) for number, chunk in enumerate(chunks))
        device, parts = next(self.network.parameters()).device, []
        for images in batches.prefetched(self._images, numbered, crops=self.task.crops):
            parts.append(inference.embed(self.network, [images]).to(device))
        embeddings = torch.cat(parts)
        if not embeddings.isfinite().all():
            raise FloatingPointError("the embeddings of the pool are not finite; lower lr or loss_lr")
        return self._compared(embeddings.unflatten(0, drawn.shape))

    def _compared(self, vectors: Tensor) -> Tensor:
        """Embeddings or proxies as the loss sees them."""
        return clip_to_unit_ball(vectors) if self.given_proxies else F.normalize(vectors, dim=-1)

    @torch.no_grad()
    def _start_proxies(self, points: Tensor) -> None:
        proxies: Any = proxies_of(self.loss)
        norms = 1 if self.given_proxies else torch.linalg.vector_norm(proxies, dim=-1, keepdim=True)
        proxies.copy_(norms * points)


class GivenProxies(nn.Module):
    """loss(embeddings, labels) of a pair loss with its learned proxies (C, M, D)."""

    def __init__(self, pairs: nn.Module, num_classes: int, proxies_per_class: int, embedding_size: int):
        super().__init__()
        self.pairs = pairs
        self.proxies = nn.Parameter(torch.zeros(num_classes, proxies_per_class, embedding_size))
        classes = torch.arange(num_classes).repeat_interleave(proxies_per_class)
        self.register_buffer("classes", classes, persistent=False)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.pairs(embeddings, labels, ref_emb=self.proxies.flatten(0, 1), ref_labels=self.classes)


def samples_of_each_class(labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """(C, size) positions in labels (N,) of 0..C-1: random samples without replacement, small classes again in turn."""
    shuffled = torch.randperm(len(labels), generator=generator)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    sizes = labels.bincount()
    starts = sizes.cumsum(0) - sizes
    return by_class[starts[:, None] + torch.arange(size) % sizes[:, None]]
