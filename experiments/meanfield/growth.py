"""What the loss's part of a training step costs as the data grow, the whole data in one batch: pairs of samples
against samples and classes. All take turns, see timing.py; only exponents and ratios are compared."""

from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch

from experiments import timing
from experiments.meanfield.methods import METHODS
from experiments.training.builders import loss_builder

LOSSES = ("Cont", "CWMS", "MFCont", "MFCWMS")
FROM = 4000  # samples; of less, what a call costs at any size is a part of a mean field loss's time


def measure(sizes: Iterable[int], num_classes: int, dim: int, repetitions: int) -> pd.DataFrame:
    """Columns method, samples, repetition, seconds; so many samples of equally large classes."""
    with timing.threads(1):
        calls = {(name, size): _step(name, size, num_classes, dim) for name in LOSSES for size in sizes}
        seconds = timing.in_turn(calls, repetitions, "cpu")
    table = seconds.rename_axis(index="repetition", columns=["method", "samples"])
    return table.unstack().rename("seconds").reset_index()


def _step(name: str, size: int, num_classes: int, dim: int) -> timing.LossStep:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        loss = loss_builder(METHODS[name].loss or "")(num_classes, dim)
        embeddings = torch.randn(size, dim)
    return timing.LossStep(loss, embeddings, torch.arange(size) % num_classes, torch.device("cpu"))


def exponents(costs: pd.DataFrame) -> pd.DataFrame:
    """Columns method, repetition, exponent: the least-squares slope of log seconds over log samples, from FROM on; no
    rows where there are not two such sizes."""
    costs = costs[costs["samples"] >= FROM]
    if costs["samples"].nunique() < 2:
        return pd.DataFrame(columns=["method", "repetition", "exponent"])
    logs = costs.assign(x=np.log(costs["samples"]), y=np.log(costs["seconds"]))
    groups = logs.groupby(["method", "repetition"], sort=False)[["x", "y"]]
    return groups.apply(lambda group: np.polyfit(group["x"], group["y"], 1)[0]).rename("exponent").reset_index()
