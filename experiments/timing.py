"""How long calls take and how much memory they need: what the cost notebooks and the benchmarks measure with.

On a CPU with one thread seconds are of processor time, which other programs disturb least, else of the clock once the
device has finished. What is compared takes turns in one process, so that whatever else the machine does falls on all
alike; only such ratios carry over to another machine. `device` is "cpu" or "cuda", where the calls compute.

A training step is the network's passes and update, which no loss changes, and the loss's passes with the update of its
proxies. The network's passes are measured on a few random images and scaled up to the batch.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from experiments.networks import backbones
from experiments.training.builders import OPTIMIZERS
from experiments.training.device import threads as threads

Key = TypeVar("Key", bound=Hashable)
Call = Callable[[], object]
ROUNDS = 2  # of a repetition of a step; the fastest one counts
STILL = 1e-12  # a learning rate so small that the points stay where they are


def seconds(call: Call, device: str) -> float:
    """Seconds of one call; processor time counts every thread of the process."""
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    finish = torch.cuda.synchronize if device == "cuda" else lambda: None
    finish()
    started = clock()
    call()
    finish()
    return clock() - started


def in_turn(calls: Mapping[Key, Call], repetitions: int, device: str, *, rounds: int = 1) -> dict[Key, list[float]]:
    """{name: seconds of a call in each repetition}, all calls in turn, after a round that warms up. A repetition has
    so many rounds and keeps the fastest of each call: a disturbance only ever adds."""
    for call in calls.values():
        call()
    taken: dict[Key, list[float]] = {name: [] for name in calls}
    for _ in range(repetitions):
        turns = [{name: seconds(call, device) for name, call in calls.items()} for _ in range(rounds)]
        for name, values in taken.items():
            values.append(min(turn[name] for turn in turns))
    return taken


def peak_bytes(call: Call, device: str) -> int:
    """The most memory that tensors made by a call take at one time, beside those that were there before."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        seconds(call, device)
        return torch.cuda.max_memory_allocated() - before
    with _silent_stderr():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            call()
        events = profile.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(itertools.accumulate((change for _, change in changes), initial=0))


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """The profiler's C++ library writes its times and process number there."""
    saved = os.dup(2)
    try:
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


class LossStep:
    """The loss's part of a training step: forward, backward to embeddings (B, D) and proxies, update; labels (B,)."""

    def __init__(self, loss: nn.Module, embeddings: Tensor, labels: Tensor, device: torch.device):
        self.loss: Any = loss.to(device)
        self.embeddings = embeddings.to(device).requires_grad_()
        self.labels = labels.to(device)
        # of a loss without parameters it updates nothing
        self.optimizer = OPTIMIZERS["adam"]([*self.loss.parameters()] or [torch.zeros(())], lr=STILL)

    def __call__(self) -> None:
        self.embeddings.grad = None
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(self.embeddings, self.labels).backward()
        self.optimizer.step()


def network_step(network: backbones.EmbeddingNet, images: Tensor) -> tuple[Call, Call]:
    """A network's passes on some images (N, 3, H, W), and its update."""
    optimizer = OPTIMIZERS["adam"](network.train().parameters(), lr=STILL)
    gradient = torch.ones(len(images), network.embedding_size, device=images.device)

    def passes() -> None:
        network.zero_grad(set_to_none=True)
        network(images).backward(gradient)

    return passes, optimizer.step


def network_and_images(
    backbone: str, weights: str, embedding_size: int, count: int, image_size: int, device: torch.device
) -> tuple[backbones.EmbeddingNet, Tensor]:
    """The network, with weights as a notebook's parameters name them, and so many random images for it."""
    network = backbones.build(backbone, embedding_size, weights=None if weights == "none" else weights).to(device)
    images = torch.randint(256, (count, 3, image_size, image_size), generator=torch.Generator().manual_seed(0))
    return network, images.to(device, torch.uint8)


def steps(
    losses: Mapping[Key, Call], network: tuple[Call, Call], share: float, repetitions: int, device: torch.device
) -> tuple[dict[Key, list[float]], list[float]]:
    """({name: seconds of the loss's part}, seconds of the network's part), a number per repetition; network: what
    `network_step` gives; share: its images over those of a batch."""
    calls: dict = dict(zip(("passes", "update"), network)) | dict(losses)
    times = in_turn(calls, repetitions, device.type, rounds=ROUNDS)
    passes, update = times.pop("passes"), times.pop("update")
    return times, [one / share + other for one, other in zip(passes, update)]
