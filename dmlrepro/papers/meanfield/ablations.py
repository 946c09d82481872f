"""Notebooks 33 to 37: the dimension, beta and delta, the batch size, alpha and the regulariser.

They are Figs 2, 3 and 5 and Tables 8 to 13 of the paper.

One thing varies, the rest is the paper's setting. At quick and small a run is a head on features computed once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dmlrepro.evidence import results, tables
from dmlrepro.evidence.stored import Numbers, agrees, where_learned
from dmlrepro.losses import baselines
from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.meanfield.claims import MEAN_FIELDS
from dmlrepro.papers.meanfield.conventional import curve_options, curve_table
from dmlrepro.papers.meanfield.magnet import field_offset
from dmlrepro.papers.meanfield.methods import SHARPNESS, MeanFieldHeadParams, every_run
from dmlrepro.papers.studies import measured, trained_loss, training_embeddings, with_measured
from dmlrepro.training.builders import build_loss
from dmlrepro.training.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class DimParams(MeanFieldHeadParams):
    """The parameters of notebook 33."""

    notebook = "33_meanfield_ablation_dim"
    positive: ClassVar = (*MeanFieldHeadParams.positive, "dims")
    references: ClassVar = {"dims": (512,)}

    methods: tuple[str, ...] = ("untrained", "ProxyAnchor", "Cont", "MFCont", "CWMS", "MFCWMS")
    dims: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class BetaDeltaParams(MeanFieldHeadParams):
    """The parameters of notebook 34."""

    notebook = "34_meanfield_ablation_beta_delta"
    positive: ClassVar = (*MeanFieldHeadParams.positive, "betas")
    references: ClassVar = {"betas": (SHARPNESS["beta"],), "deltas": (SHARPNESS["delta"],)}
    overrides: ClassVar = {
        profile: MeanFieldHeadParams.overrides[profile] | {"betas": betas, "deltas": deltas}
        for profile, betas, deltas in (
            ("quick", (50.0, 80.0, 90.0), (0.6, 0.8, 1.0)),
            ("small", (50.0, 60.0, 70.0, 80.0, 90.0), (0.6, 0.7, 0.8, 0.9, 1.0)),
            ("paper", (50.0, 60.0, 70.0, 80.0, 90.0), (0.6, 0.7, 0.8, 0.9, 1.0)),
        )
    }

    betas: tuple[float, ...] | None = None
    deltas: tuple[float, ...] | None = None


@dataclass(frozen=True)
class BatchSizeParams(MeanFieldHeadParams):
    """The parameters of notebook 35; the number of epochs is fixed, so that a larger batch has fewer steps."""

    notebook = "35_meanfield_ablation_batch_size"
    positive: ClassVar = (*MeanFieldHeadParams.positive, "batch_sizes")
    references: ClassVar = {"batch_sizes": (180,)}
    overrides: ClassVar = {
        "quick": {"steps": 0, "epochs": 4, "freeze_trunk": True},
        "small": MeanFieldHeadParams.overrides["small"] | {"steps": 0, "epochs": 10},
        "paper": MeanFieldHeadParams.overrides["paper"],
    }

    methods: tuple[str, ...] = ("untrained", "ProxyAnchor", "MFCWMS")
    batch_sizes: tuple[int, ...] = (30, 60, 90, 120, 150, 180)


@dataclass(frozen=True)
class AlphaParams(MeanFieldHeadParams):
    """The parameters of notebook 36."""

    notebook = "36_meanfield_ablation_alpha"
    positive: ClassVar = (*MeanFieldHeadParams.positive, "alphas")
    references: ClassVar = {"alphas": (SHARPNESS["alpha"],)}
    overrides: ClassVar = BatchSizeParams.overrides

    alphas: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 20.0, 40.0)


@dataclass(frozen=True)
class RegularizerParams(MeanFieldHeadParams):
    """The parameters of notebook 37."""

    notebook = "37_meanfield_ablation_regularizer"
    references: ClassVar = {"weights_of_regularizer": (0.0,), "first_epochs": (2,)}
    overrides: ClassVar = BatchSizeParams.overrides

    weights_of_regularizer: tuple[float, ...] = (0.0, 0.01, 0.1, 1.0, 10.0, 100.0)  # lambda_MF
    first_epochs: tuple[int, ...] = (1, 2)  # after these the regulariser is looked at too


def ablation_dim(params: DimParams) -> list[RunSpec]:
    """Fig. 2."""
    found = every_run([name for name in params.methods if name == "untrained"], params)
    trained = [name for name in params.methods if name != "untrained"]
    for dim in params.dims:
        found += every_run(trained, params, setting=f"dim={dim}", embedding_size=dim)
    return found


def dim_table(finished: Iterable, params: DimParams) -> "pd.DataFrame":
    """The rows of the runs. The column `dim`, which tells tables of different comparisons apart, is that of the
    parameters in all of them: the dimension is what is compared here, and the setting says it."""
    table = results.tidy(finished, params)
    return table.assign(dim=table["dim"].where(table["dim"] == 0, params.embedding_size))


def ablation_beta_delta(params: BetaDeltaParams) -> list[RunSpec]:
    """Fig. 3."""
    found = every_run(["untrained"], params)
    for delta in params.deltas:
        for beta in params.betas:
            options = {"beta": beta, "delta": delta}
            found += every_run(["MFCWMS"], params, setting=f"beta={beta:g};delta={delta:g}", loss_options=options)
    return found


def beta_delta_table(finished: Iterable, params: BetaDeltaParams) -> "pd.DataFrame":
    """The rows of the runs, and at every delta and seed the beta of the best MAP@R after the last step."""
    finished = list(finished)
    found = []
    for delta in params.deltas:
        for seed in sorted({run.spec.seed for run in finished}):
            runs = [r for r in finished if r.spec.loss and (r.spec.seed, r.spec.loss_options["delta"]) == (seed, delta)]
            best = max(runs, key=lambda run: run.metric("MAP@R"))
            found.append(measured(best, {"best_beta": best.spec.loss_options["beta"]}, f"delta={delta:g}"))
    return with_measured(finished, found, params)


def grid(table: "pd.DataFrame", metric: str = "MAP@R") -> "pd.DataFrame":
    """Fig. 3 as a table: beta down, delta across, means over seeds after the last step."""
    rows = table[(table["metric"] == metric) & (table["selection"] == "last")]
    levels = rows["setting"].str.extract(r"beta=(?P<beta>[\d.]+);delta=(?P<delta>[\d.]+)").astype(float)
    rows = rows.assign(**levels).dropna(subset=["beta"])
    return rows.pivot_table(index="beta", columns="delta", values="value")


def grid_changes(table: "pd.DataFrame", metric: str = "MAP@R") -> dict[str, tuple]:
    """Changes of a metric from the default beta and delta, paired by seed: {delta: (beta, mean, lowest, highest)}."""
    grids = np.stack([grid(rows, metric).to_numpy() for _, rows in table.groupby("seed")])
    whole = grid(table, metric)
    default = whole.index.get_loc(SHARPNESS["beta"]), whole.columns.get_loc(SHARPNESS["delta"])
    changes = grids - grids[:, *default][:, None, None]
    return {
        f"δ = {delta:g}": (whole.index, *(each(changes[:, :, i], axis=0) for each in (np.mean, np.min, np.max)))
        for i, delta in enumerate(whole.columns)
    }


def ablation_batch_size(params: BatchSizeParams) -> list[RunSpec]:
    """Tables 8 to 11."""
    found = every_run([name for name in params.methods if name == "untrained"], params)
    trained = [name for name in params.methods if name != "untrained"]
    for size in params.batch_sizes:
        found += every_run(trained, params, setting=f"batch={size}", batch_size=size)
    return found


def ablation_alpha(params: AlphaParams) -> list[RunSpec]:
    """Table 12, which also has the epoch of the best evaluation."""
    found = every_run(["untrained"], params)
    for alpha in params.alphas:
        changed = {"setting": f"alpha={alpha:g}", "loss_options": {"alpha": alpha}}
        found += every_run(["MFCWMS"], params, **changed, **curve_options(params))
    return found


def ablation_regularizer(params: RegularizerParams) -> list[RunSpec]:
    """Table 13; ProxyAnchor, whose proxies are compared with mean fields; and for Fig. 5 the first epochs of the runs
    without a regulariser, which is how those began: a step depends on nothing but the seed and the steps before."""
    found = every_run(["untrained", "ProxyAnchor"], params)
    for name in ("MFCont", "MFCWMS"):
        for weight in params.weights_of_regularizer:
            options = {"setting": f"lambda={weight:g}", "loss_options": {"regularization": weight}}
            found += every_run([name], params, **options)
        for epochs in params.first_epochs:
            short = {"steps": None, "epochs": epochs, "patience": None}
            options = {"setting": f"lambda=0;epochs={epochs}", "loss_options": {"regularization": 0.0}}
            found += every_run([name], params, **options | short)
    return found


def regularizer_table(finished: Iterable, params: RegularizerParams) -> "pd.DataFrame":
    """The rows of the runs. Of those without a regulariser also its value, at the start and after each of them; and how
    far their mean fields, and the proxies of ProxyAnchor, lie from the mean embeddings of their classes."""
    finished = list(finished)
    found = []
    for run in finished:
        plain = run.spec.setting.startswith("lambda=0") and run.spec.loss_options["regularization"] == 0
        if not (plain or run.spec.method == "ProxyAnchor"):
            continue
        manifest, embeddings, labels = training_embeddings(run)
        loss: Any = trained_loss(run, manifest, embeddings.shape[1])
        if plain:
            found.append(measured(run, {"regularizer": loss.regularizer().item()}))
        if run.spec.setting in ("", "lambda=0"):
            fields: Any = loss.mean_fields if plain else baselines.proxies_of(loss)[:, 0]
            offset = field_offset(fields.detach().double(), embeddings.double(), labels)
            found.append(measured(run, {"field_offset": offset}))
        if run.spec.setting == "lambda=0":
            start: Any = build_loss(run.spec, manifest.num_train_classes, embeddings.shape[1])
            found.append(measured(run, {"regularizer": start.regularizer().item()}, "lambda=0;epochs=0"))
    return with_measured(finished, found, params)


# --- what was found ---------------------------------------------------------------------------------------------------


def _rises_with_dim(numbers: Numbers) -> str:
    levels = {name: numbers.levels(name, "dim", "MAP@R") for name in MEAN_FIELDS}
    steady = all(list(each.values()) == sorted(each.values()) for each in levels.values())
    rises = all(each[max(each)] > each[min(each)] for each in levels.values())
    told = "; ".join(
        f"{name} {numbers.against(f'{name};dim={max(each):g}', f'{name};dim={min(each):g}', 'MAP@R')}"
        for name, each in levels.items()
    )
    word = "at every step" if steady else "from the smallest to the largest, but not at every step" if rises else "not"
    least, most = min(levels["MFCWMS"]), max(levels["MFCWMS"])
    return f"MAP@R rises {word} with the dimension, {agrees(steady)}: at {most:g} against {least:g}, {told}."


def _gains_where_small(numbers: Numbers) -> str:
    gains = {}
    for name in MEAN_FIELDS:
        for dims in ("64..256", "512..1024"):
            gains[name, dims] = numbers.effects(f"{name};dim={dims}", f"ProxyAnchor;dim={dims}", "MAP@R").mean()
    larger = all(gains[name, "64..256"] > gains[name, "512..1024"] for name in MEAN_FIELDS)
    told = "; ".join(f"{n} {gains[n, '64..256']:+.1f} and {gains[n, '512..1024']:+.1f}" for n in MEAN_FIELDS)
    return (
        f"The distance to ProxyAnchor is {'' if larger else 'not '}more favourable at 64 to 256 dimensions than at 512 "
        f"and 1024, {agrees(larger)}: {told} points."
    )


def _stable(numbers: Numbers) -> str:
    default = f"beta={SHARPNESS['beta']:g};delta={SHARPNESS['delta']:g}"
    settings = [each for each in numbers.cells.get(("MFCWMS", "MAP@R"), {}) if each.startswith("beta=")]
    if default not in settings or len(settings) < 2:
        raise tables.MissingRows("a grid of beta and delta with the default in it")
    changes = {
        each: numbers.effects(f"MFCWMS;{each}", f"MFCWMS;{default}", "MAP@R").mean()
        for each in settings
        if each != default
    }
    farthest = max(changes, key=lambda each: abs(changes[each]))
    stable = abs(changes[farthest]) <= 1
    return (
        f"MAP@R is {'' if stable else 'not '}stable over the grid, {agrees(stable)}: the farthest of {len(settings)} "
        f"points, {farthest.replace(';', ', ').replace('=', ' = ')}, has "
        f"{numbers.against(f'MFCWMS;{farthest}', f'MFCWMS;{default}', 'MAP@R')} of beta = 80, delta = 0.8."
    )


def _preferred_beta(numbers: Numbers) -> str:
    levels = numbers.levels("MFCWMS", "delta", "best_beta")
    falls = levels[min(levels)] < levels[max(levels)]
    told = ", ".join(f"{beta:.0f} at {delta:g}" for delta, beta in levels.items())
    return f"The best beta {'falls' if falls else 'does not fall'} as delta falls, {agrees(falls)}: {told}."


def _rises_with_batch(numbers: Numbers) -> str:
    levels = numbers.levels("MFCWMS", "batch", "MAP@R")
    small, large, best = min(levels), max(levels), max(levels, key=levels.get)
    rises = levels[large] > levels[small]
    return (
        f"MAP@R of MFCWMS {'rises' if rises else 'falls'} from a batch of {small:g} to {large:g} in equally many "
        f"epochs, {agrees(rises)}, which gains 2.1 on birds: "
        f"{numbers.against(f'MFCWMS;batch={large:g}', f'MFCWMS;batch={small:g}', 'MAP@R')}; the best is {best:g}."
    )


def _batch_of_proxy_anchor(numbers: Numbers) -> str:
    levels = numbers.levels("ProxyAnchor", "batch", "MAP@R")
    least, most, best = min(levels), max(levels), max(levels, key=levels.get)
    return (
        f"ProxyAnchor, which has as many steps, is best at {best:g}: at {most:g} it has "
        f"{numbers.against(f'ProxyAnchor;batch={most:g}', f'ProxyAnchor;batch={least:g}', 'MAP@R')} at {least:g}."
    )


def _best_alpha(numbers: Numbers) -> str:
    levels = numbers.levels("MFCWMS", "alpha", "MAP@R")
    best = max(levels, key=levels.get)
    other = 0.01 if best != 0.01 else max(levels)
    inside = 1 < best < max(levels)
    return (
        f"MAP@R is highest at alpha = {best:g}, {agrees(inside)}, which has a slow rise up to 20 and a fall at 40: "
        f"{numbers.against(f'MFCWMS;alpha={best:g}', f'MFCWMS;alpha={other:g}', 'MAP@R')} at {other:g}."
    )


def _alpha_takes_longer(numbers: Numbers) -> str:
    epochs = numbers.levels("MFCWMS", "alpha", "best_epoch")
    longer = epochs[max(epochs)] > epochs[min(epochs)]
    if len(set(epochs.values())) == 1:
        return f"At every alpha the best MAP@R is that of epoch {min(epochs.values()):.1f}: none is seen to be slower."
    return (
        f"The best epoch comes {'later' if longer else 'no later'} at large alpha, {agrees(longer)}: "
        + ", ".join(f"{epoch:.1f} at {alpha:g}" for alpha, epoch in epochs.items())
        + "."
    )


def _no_difference(numbers: Numbers) -> str:
    said, flat = [], True
    for name in MEAN_FIELDS:
        levels = numbers.levels(name, "lambda", "MAP@R")
        far = max(levels, key=lambda level: abs(levels[level] - levels[0.0]))
        flat &= abs(levels[far] - levels[0.0]) <= 0.5
        against = numbers.against(f"{name};lambda={far:g}", f"{name};lambda=0", "MAP@R")
        said.append(f"{name} has {against} at lambda = {far:g}, the farthest from lambda = 0")
    return (
        f"The regulariser makes {'no difference' if flat else 'a difference'} beyond half a point, {agrees(flat)}: "
        f"{'; '.join(said)}."
    )


def _vanishes(numbers: Numbers) -> str:
    found = {
        name: [numbers.mean(f"{name};lambda=0;epochs={epoch}", "regularizer") for epoch in (0, 2)]
        for name in MEAN_FIELDS
    }
    zero = all(after < 0.05 for _, after in found.values())
    told = "; ".join(
        f"{name} {start:.3g} at the start, {after:.3g} after two epochs" for name, (start, after) in found.items()
    )
    return f"Without a weight it {'is' if zero else 'is not'} zero after two epochs, {agrees(zero)}: {told}."


def _near_the_means(numbers: Numbers) -> str:
    offsets = {name: numbers.mean(f"{name};lambda=0", "field_offset") for name in MEAN_FIELDS}
    proxies = numbers.mean("ProxyAnchor", "field_offset")
    near = max(offsets.values()) <= 0.4
    return (
        f"Learned mean fields are {'' if near else 'not '}the means of their classes, {agrees(near)}: they lie "
        f"{' and '.join(f'{each:.2f}' for each in offsets.values())} spreads of the class from its mean, proxies of "
        f"ProxyAnchor {proxies:.2f}."
    )


NOTEBOOKS = [
    Notebook(DimParams, ablation_dim, dim_table, findings=where_learned(_rises_with_dim, _gains_where_small)),
    Notebook(BetaDeltaParams, ablation_beta_delta, beta_delta_table, findings=where_learned(_stable, _preferred_beta)),
    Notebook(BatchSizeParams, ablation_batch_size, findings=where_learned(_rises_with_batch, _batch_of_proxy_anchor)),
    Notebook(AlphaParams, ablation_alpha, curve_table, findings=where_learned(_best_alpha, _alpha_takes_longer)),
    Notebook(
        RegularizerParams,
        ablation_regularizer,
        regularizer_table,
        findings=where_learned(_no_difference, _vanishes, _near_the_means),
    ),
]
