"""How long calls take and how much memory they need: what the cost notebooks and the benchmarks measure with.

On a CPU with one thread seconds are of processor time, which other programs disturb least, else of the clock once the
device has finished. What is compared takes turns in one process, so that whatever else the machine does falls on all
alike; only such ratios carry over to another machine. `device` is "cpu" or "cuda", where the calls compute.

A training step is the network's passes and update, which no loss changes, and the loss's passes with the update of its
proxies. The network's passes are measured on a few random images and scaled up to the batch.
"""

import itertools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from experiments.networks import backbones
from experiments.params import Params
from experiments.studies import study_rows
from experiments.training.builders import OPTIMIZERS
from experiments.training.device import threads as threads

Call = Callable[[], object]
RUN = ["method", "setting", "seed"]  # what costs are told apart by; `seed` is the number of the repetition
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


def in_turn(calls: Mapping[Any, Call], repetitions: int, device: str, *, rounds: int = 1) -> pd.DataFrame:
    """Seconds of all calls in turn, after a round that warms up: a column for each, a row per repetition. A repetition
    has so many rounds and keeps the fastest of each call: a disturbance only ever adds."""
    for call in calls.values():
        call()
    turns = [[seconds(call, device) for call in calls.values()] for _ in range(repetitions * rounds)]
    return pd.DataFrame(dict(zip(calls, zip(*turns)))).groupby(lambda turn: turn // rounds).min()


def peak_bytes(call: Call, device: str) -> int:
    """The most memory that tensors made by a call take at one time, beside those that were there before."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        seconds(call, device)
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes times and process numbers
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    events = profile.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(itertools.accumulate((change for _, change in changes), initial=0))


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
    losses: Mapping[tuple[str, str], Call], network: Any, images: Tensor, batch_size: int, repetitions: int
) -> pd.DataFrame:
    """By RUN, `seconds` of the loss's part of a step, {(method, setting): call}, and `network_seconds` of the other."""
    passes, update = network_step(network, images)
    calls = {("network", "passes"): passes, ("network", "update"): update, **losses}
    times = in_turn(calls, repetitions, images.device.type, rounds=ROUNDS).rename_axis(index="seed", columns=RUN[:2])
    network_part = times.pop("network") @ [batch_size / len(images), 1]
    costs = times.unstack().to_frame("seconds")
    return costs.assign(network_seconds=costs.index.get_level_values("seed").map(network_part))


def over(costs: pd.DataFrame, baseline: str, setting_of: Callable[[str], str] = str) -> pd.DataFrame:
    """Costs by RUN, each over that of the baseline in the same repetition; setting_of: the baseline's setting for one
    of another method, by default the same."""
    return costs / costs.loc[[(baseline, setting_of(setting), seed) for _, setting, seed in costs.index]].to_numpy()


def rows(params: Params, values: pd.DataFrame, backbone: str, dim: int) -> pd.DataFrame:
    """A tidy table of values by RUN, a metric per column; what is NaN was not measured."""
    tidy = values.reset_index().melt(RUN, var_name="metric").dropna(subset="value")
    return study_rows(params, tidy.to_dict("records"), backbone=backbone, dim=dim)
