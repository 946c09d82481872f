"""Notebooks 33 to 37: the dimension, beta and delta, the batch size, alpha and the regulariser, each alone (Figs 2, 3
and 5, Tables 8 to 13)."""

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F

from dmlrepro.losses import baselines
from experiments.analysis import results
from experiments.analysis.tables import START
from experiments.meanfield.conventional import curve_options, curves_of
from experiments.meanfield.magnet import best_fields, field_offset
from experiments.meanfield.methods import PROFILES, SHARPNESS, every_run, meanfield_study
from experiments.params import Count, Number, Positive, Whole, parameters
from experiments.studies import scored, trained_loss, training_embeddings, with_measured
from experiments.training import records
from experiments.training.builders import build_loss
from experiments.training.records import measurement
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec

# Many short runs; the budget of the runs, and of those whose epochs count
EPOCHS = {"quick": {"steps": 0, "epochs": 2}, "small": {"steps": 0, "epochs": 4}}
by_epochs = functools.partial(meanfield_study, shared=PROFILES | EPOCHS)


def _levels(names: Sequence[str], params: Any, levels: Mapping[str, Mapping[str, Any]]) -> list[RunSpec]:
    """Some methods at every level: {setting: what their runs have otherwise}; an untrained network once before them."""
    trained = [name for name in names if name != "untrained"]
    specs = every_run(["untrained"] * ("untrained" in names), params)
    for setting, how in levels.items():
        specs += every_run(trained, params, setting=setting, **how)
    return specs


def ablation_dim(params: Any) -> list[RunSpec]:
    """Fig. 2; a trained head of a dimension begins as the random one of the same."""
    dims = {f"dim={dim}": {"embedding_size": dim} for dim in params.dims}
    specs = _levels(params.methods, params, dims)
    starts = [run for run in specs if run.method == START]
    before = sum(run.loss is None for run in specs)
    specs[before:before] = [run.replace(setting=setting, **how) for setting, how in dims.items() for run in starts]
    return specs


def dim_table(finished: Iterable[RunResult], params: Any) -> pd.DataFrame:
    """The rows of the runs. Their column `dim`, which tells contexts apart, is the parameters'; settings say each."""
    table = results.tidy(finished, params)
    return table.assign(dim=table["dim"].where(table["dim"] == 0, params.embedding_size))


def beta_delta_table(finished: Iterable[RunResult], params: Any) -> pd.DataFrame:
    """The rows of the runs, and at every delta and seed the best MAP@R after the last step and its beta."""
    finished = list(finished)
    optima = []
    for delta, seed in itertools.product(params.deltas, sorted({run.spec.seed for run in finished})):
        runs = [r for r in finished if r.spec.loss and (r.spec.seed, r.spec.loss_options["delta"]) == (seed, delta)]
        best = max(runs, key=lambda run: run.metric("MAP@R"))
        values = {"best_beta": best.spec.loss_options["beta"], "MAP@R": best.metric("MAP@R")}
        optima.append(scored(best, values, f"delta={delta:g}"))
    return with_measured(finished, optima, params)


def ablation_regularizer(params: Any) -> list[RunSpec]:
    """Table 13; ProxyAnchor, whose proxies are compared with mean fields; and for Fig. 5 the first epochs of the runs
    without a regulariser, which is how those began: a step depends on nothing but the seed and the steps before."""
    levels: dict[str, dict[str, Any]] = {
        f"lambda={weight:g}": {"loss_options": {"regularization": weight}} for weight in params.weights_of_regularizer
    }
    short = {"loss_options": {"regularization": 0.0}, "steps": None, "patience": None}
    levels |= {f"lambda=0;epochs={epochs}": short | {"epochs": epochs} for epochs in params.first_epochs}
    specs = every_run(["untrained", "ProxyAnchor"], params)
    return specs + _levels(["MFCont"], params, levels) + _levels(["MFCWMS"], params, levels)


def regularizers_of(run: RunResult, params: Any) -> list:
    """Of a run without a regulariser its value, at the start and after it; how far its mean fields, the proxies of
    ProxyAnchor, and fields that are solved for lie from the mean embeddings of their classes."""
    plain = run.spec.setting.startswith("lambda=0") and run.spec.loss_options["regularization"] == 0
    if not (plain or run.spec.method == "ProxyAnchor"):
        return []
    values = records.derived([run], fields_of, plain=plain)
    shown = ["regularizer"] * plain + ["field_offset"] * (run.spec.setting in ("", "lambda=0"))
    measurements = [scored(run, {name: values[name] for name in shown})]
    if run.spec.setting == "lambda=0":
        measurements.append(scored(run, {"regularizer": values["before"]}, "lambda=0;epochs=0"))
        if params.profile != "quick":  # it takes longer than training does there
            solved = records.derived([run], solved_fields_of)
            measurements.append(scored(run, solved | {"MAP@R": run.metric("MAP@R")}, "fields=solved"))
    return measurements


@measurement("meanfield.solved_fields")
def solved_fields_of(run: RunResult) -> dict[str, float]:
    """The `field_offset` of the mean fields at which the loss over all training images is least while the network
    stays, the lower of the minima that trained fields and class means lead to, and the norm of the gradient there over
    that at the fields of the last step, `field_gradient`."""
    manifest, embeddings, labels = training_embeddings(run)
    loss = trained_loss(run, manifest, embeddings.shape[1]).double()
    embeddings = embeddings.double()

    def value(embeddings: torch.Tensor, labels: torch.Tensor, fields: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(loss, {"mean_fields": fields}, (embeddings, labels))

    def gradient(fields: torch.Tensor) -> float:
        fields = fields.clone().requires_grad_()
        return torch.autograd.grad(value(embeddings, labels, fields), fields)[0].norm().item()

    trained = F.normalize(loss.get_parameter("mean_fields").detach(), dim=1)
    solved = [best_fields(embeddings, labels, value, 500, start) for start in (trained, None)]
    best = F.normalize(min(solved, key=lambda fields: value(embeddings, labels, fields).item()), dim=1)
    return {
        "field_offset": field_offset(best, embeddings, labels),
        "field_gradient": gradient(best) / gradient(trained),
    }


@measurement("meanfield.fields")
def fields_of(run: RunResult, plain: bool) -> dict[str, float]:
    """`field_offset` and `regularizer` of a run's mean fields, and what the latter was `before` the first step; not
    plain: of proxies, `field_offset` alone."""
    manifest, embeddings, labels = training_embeddings(run)
    loss: Any = trained_loss(run, manifest, embeddings.shape[1])
    fields: Any = loss.mean_fields if plain else baselines.proxies_of(loss)[:, 0]  # type: ignore[index]
    offset = {"field_offset": field_offset(fields.detach().double(), embeddings.double(), labels)}
    if not plain:
        return offset
    start: Any = build_loss(run.spec, manifest.num_train_classes, embeddings.shape[1])
    return {"regularizer": loss.regularizer().item(), **offset, "before": start.regularizer().item()}


Dim = meanfield_study(
    "33_meanfield_ablation_dim",
    parameters(methods=tuple[str, ...], dims=tuple[Count, ...]),
    ablation_dim,
    dim_table,
    profiles={
        "*": {
            "methods": ("untrained", "ProxyAnchor", "Cont", "MFCont", "CWMS", "MFCWMS"),
            "dims": (32, 64, 128, 256, 512, 1024),
        },
        "quick": {"methods": ("untrained", "ProxyAnchor", "MFCont", "MFCWMS"), "dims": (32, 128, 512)},
    },
    references={"dims": (512,)},
)
BetaDelta = meanfield_study(
    "34_meanfield_ablation_beta_delta",
    parameters(betas=tuple[Positive, ...], deltas=tuple[Number, ...]),  # Fig. 3
    lambda params: _levels(
        ["untrained", "MFCWMS"],
        params,
        {
            f"beta={beta:g};delta={delta:g}": {"loss_options": {"beta": beta, "delta": delta}}
            for delta, beta in itertools.product(params.deltas, params.betas)
        },
    ),
    beta_delta_table,
    profiles={
        "*": {"betas": (50.0, 60.0, 70.0, 80.0, 90.0), "deltas": (0.6, 0.7, 0.8, 0.9, 1.0)},
        "quick": {"betas": (50.0, 80.0, 90.0), "deltas": (0.6, 0.8, 1.0)},
    },
    references={"betas": (SHARPNESS["beta"],), "deltas": (SHARPNESS["delta"],)},
)
BatchSize = by_epochs(
    "35_meanfield_ablation_batch_size",
    # Tables 8 to 11; the number of epochs is fixed, so that a larger batch has fewer steps
    parameters(methods=(tuple[str, ...], ("untrained", "ProxyAnchor", "MFCWMS")), batch_sizes=tuple[Count, ...]),
    lambda params: _levels(
        params.methods, params, {f"batch={size}": {"batch_size": size} for size in params.batch_sizes}
    ),
    profiles={"*": {"batch_sizes": (30, 60, 90, 120, 150, 180)}, "quick": {"batch_sizes": (30, 90, 180)}},
    references={"batch_sizes": (180,)},
)
Alpha = by_epochs(
    "36_meanfield_ablation_alpha",
    parameters(alphas=tuple[Positive, ...]),  # Table 12, which also has the epoch of the best evaluation
    lambda params: _levels(
        ["untrained", "MFCWMS"],
        params,
        {f"alpha={a:g}": curve_options(params) | {"loss_options": SHARPNESS | {"alpha": a}} for a in params.alphas},
    ),
    measures=curves_of,
    profiles={
        "*": {"alphas": (0.01, 0.1, 1.0, 10.0, 20.0, 40.0)},
        "quick": {"alphas": (0.01, 1.0, 40.0)},
        "small": {"epochs": 16},  # a larger alpha is said to converge later
    },
    references={"alphas": (SHARPNESS["alpha"],)},
)
Regularizer = by_epochs(
    "37_meanfield_ablation_regularizer",
    parameters(
        weights_of_regularizer=tuple[Number, ...],  # lambda_MF
        first_epochs=(tuple[Whole, ...], (1, 2)),  # after these the regulariser is looked at too
    ),
    ablation_regularizer,
    profiles={
        "*": {"weights_of_regularizer": (0.0, 0.01, 0.1, 1.0, 10.0, 100.0)},
        "quick": {"weights_of_regularizer": (0.0, 1.0, 100.0)},
    },
    references={"weights_of_regularizer": (0.0,), "first_epochs": (2,)},
    measures=regularizers_of,
)
