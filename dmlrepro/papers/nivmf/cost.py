"""Notebook 26: what Monte-Carlo samples cost, and what they are good for."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from dmlrepro import metrics
from dmlrepro.evidence import results
from dmlrepro.evidence.statistics import t_interval
from dmlrepro.papers import timing
from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.methods import pick, runs_of, spec_of
from dmlrepro.papers.nivmf.methods import METHODS, NivmfParams
from dmlrepro.papers.studies import measured, trained_loss, with_measured
from dmlrepro.training import batches, distributed, inference
from dmlrepro.training.builders import OPTIMIZERS, build_loss
from dmlrepro.training.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class NivmfCostParams(NivmfParams):
    """The parameters of notebook 26."""

    notebook = "26_nivmf_cost_and_samples"
    positive: ClassVar = (*NivmfParams.positive, "sample_counts", "cost_image_size", "repetitions")
    references: ClassVar = {"sample_counts": ("samples",)}

    sample_counts: tuple[int, ...] = (1, 2, 5, 10, 20)
    cost_backbones: tuple[str, ...] = ("conv4", "squeezenet1_1")
    cost_image_size: int = 64  # pixels; conv4 takes glyphs as they are
    repetitions: int = 6  # how often each time is measured, all methods in turn


def cost_and_samples(params: NivmfCostParams) -> list[RunSpec]:
    """EL-nivMF at every number of samples, at its default once more without that setting, and without D(K)."""
    for backbone in params.cost_backbones:  # what cannot be timed after training is an error before it
        _timed_specs(params, backbone)
    el_nivmf = [METHODS["EL-nivMF"]]
    found = runs_of(pick(METHODS, ["untrained", "EL-nivMF"]), params)
    for count in params.sample_counts:
        found += runs_of(el_nivmf, params, setting=f"samples={count}", loss_options={"num_samples": count})
    return found + runs_of(el_nivmf, params, setting="normalizer=none", loss_options={"jacobian": "none"})


ANALYTIC = ("EL-vMF", "B-vMF", "KL-vMF")
ROUNDS = 3  # of a repetition; the fastest one counts


def _timed_specs(params: NivmfCostParams, backbone: str) -> dict[tuple[str, str], RunSpec]:
    """What is timed on a backbone, by method and setting."""
    size = None if backbone == "conv4" and not params.image_size else params.cost_image_size
    change = {"backbone": backbone, "weights": None, "image_size": size, "test_resize": size}
    specs = {("ProxyNCA++", ""): spec_of(METHODS["ProxyNCA++"], params, **change)}
    specs |= {(name, ""): spec_of(METHODS[name], params, **change) for name in ANALYTIC}
    for count in params.sample_counts:
        options = {"num_samples": count}
        specs["EL-nivMF", f"samples={count}"] = spec_of(METHODS["EL-nivMF"], params, loss_options=options, **change)
    return specs


def timed_ratios(params: NivmfCostParams) -> "pd.DataFrame":
    """Times of a training step and of retrieval over ProxyNCA++'s, on every backbone; a row per repetition.

    All methods take turns within a repetition, so that a machine that slows down slows them all. No two executions
    agree: the table is for `claims.verdicts` and the costs, not for the results.
    """
    rows = []
    for backbone in params.cost_backbones:
        specs = _timed_specs(params, backbone)
        retrieving = {name: specs[name] for name in (("ProxyNCA++", ""), ("EL-nivMF", f"samples={params.samples}"))}
        timings = {
            "seconds_ratio": _timed(specs, stepper, params.repetitions, params.threads),
            "retrieval_seconds_ratio": _timed(retrieving, _retriever, params.repetitions, params.threads),
        }
        for metric, seconds in timings.items():
            for (method, setting), values in seconds.items():
                setting = "" if metric.startswith("retrieval") else setting
                rows += [
                    {
                        "paper": params.paper,
                        "experiment": params.notebook,
                        "profile": params.profile,
                        "dataset": params.dataset,
                        "backbone": backbone,
                        "dim": params.embedding_size,
                        "method": method,
                        "setting": setting,
                        "seed": repetition,
                        "metric": metric,
                        "value": value / reference,
                    }
                    for repetition, (value, reference) in enumerate(zip(values, seconds["ProxyNCA++", ""]))
                    if method != "ProxyNCA++"
                ]
    return results.frame(rows)


def _timed(specs: Mapping, prepare: Callable[[RunSpec], Callable[[], None]], repetitions: int, threads: int) -> dict:
    """{name: seconds (repetitions,)} of what `prepare` makes of every spec, all in turn."""
    with timing.threads(threads):
        calls = {name: prepare(each) for name, each in specs.items()}
        return timing.in_turn(calls, repetitions, distributed.device_for_training().type, rounds=ROUNDS)


def stepper(run_spec: RunSpec) -> Callable[[], None]:
    """One optimisation step of a spec on a fixed batch, ready to be called and timed."""
    device = distributed.device_for_training()
    manifest = batches.load_dataset(run_spec)
    network = inference.build_network(run_spec, manifest).to(device).train()
    loss = build_loss(run_spec, manifest.num_train_classes, network.embedding_size).to(device)
    optimizer = OPTIMIZERS["adamw"]([*network.parameters(), *loss.parameters()], lr=1e-6)
    picked = np.random.default_rng(0).choice(manifest.indices("train"), run_spec.batch_size, replace=False)
    batch = batches.test_images(run_spec, manifest, picked).to(device)
    labels = torch.from_numpy(manifest.labels[picked]).to(device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(network(batch), labels).backward()
        optimizer.step()

    return step


def _retriever(run_spec: RunSpec, queries: int = 400) -> Callable[[], None]:
    """Embedding and ranking some test images with a spec's network."""
    device = distributed.device_for_training()
    manifest = batches.load_dataset(run_spec)
    network = inference.build_network(run_spec, manifest).to(device).eval()
    test = manifest.indices("test")[:queries]
    labels = torch.from_numpy(manifest.labels[test]).to(device)
    batch = batches.test_images(run_spec, manifest, test).to(device)

    @torch.no_grad()
    def retrieve() -> None:
        metrics.retrieval(network(batch), labels)

    return retrieve


def cost_table(timings: "pd.DataFrame") -> "pd.DataFrame":
    """Mean ratio to ProxyNCA++ and its 95 % interval over repetitions, a row per backbone, method and setting."""
    import pandas as pd

    grouped = timings.groupby(["metric", "backbone", "method", "setting"], sort=False)["value"].agg(list)
    found = [
        dict(zip(grouped.index.names, key)) | {"mean": np.mean(values)} | dict(zip(("low", "high"), t_interval(values)))
        for key, values in grouped.items()
    ]
    return pd.DataFrame(found).round(3)


def all_costs(finished: Iterable, timings: "pd.DataFrame") -> "pd.DataFrame":
    """Seconds of the runs, and below them the timed ratios."""
    import pandas as pd

    return pd.concat([results.costs(finished), timings[["metric", "backbone", "method", "setting", "seed", "value"]]])


def cost_curves(timings: "pd.DataFrame") -> dict[str, tuple]:
    """Step time of EL-nivMF over ProxyNCA++'s against N, with intervals, for `plots.lines`."""
    rows = timings[(timings["metric"] == "seconds_ratio") & (timings["method"] == "EL-nivMF")]
    found = {}
    for backbone, group in rows.groupby("backbone", sort=False):
        points = []
        for setting, values in group.groupby("setting")["value"]:
            points.append((int(setting.partition("=")[2]), values.mean(), *t_interval(values)))
        found[f"EL-nivMF, {backbone}"] = tuple(zip(*sorted(points)))
    return found


def estimate_spread(run, counts: Sequence[int], draws: int = 40) -> list[dict[str, float]]:
    """Mean and standard deviation, over fresh draws, of a trained run's loss on one training batch, for each N."""
    manifest = batches.load_dataset(run.spec)
    picked = np.random.default_rng(run.spec.seed).choice(manifest.indices("train"), run.spec.batch_size, replace=False)
    labels = torch.from_numpy(manifest.labels[picked])
    embeddings = inference.embed_images(run.spec, run.network(), manifest, picked)
    found = []
    for count in counts:
        loss = trained_loss(run, manifest, embeddings.shape[1], num_samples=count)
        with torch.no_grad():
            values = torch.stack([loss(embeddings, labels) for _ in range(draws)])
        found.append({"loss_mean": values.mean().item(), "loss_sd": values.std().item()})
    return found


def samples_table(finished: Iterable, params: NivmfCostParams) -> "pd.DataFrame":
    """The rows of the runs, and the spread of the loss estimate of the default run for each N."""
    finished = list(finished)
    found = [
        measured(run, values, f"samples={count}")
        for run in finished
        if run.spec.method == "EL-nivMF" and not run.spec.setting
        for count, values in zip(params.sample_counts, estimate_spread(run, params.sample_counts))
    ]
    return with_measured(finished, found, params)


NOTEBOOKS = [Notebook(NivmfCostParams, cost_and_samples, samples_table)]
