"""Notebooks 41 and 47: retrieval under the paper's own protocol (Tables II, V, VI, Fig. 8) and under the conventional
one (Tables III, IV)."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import comparing, statistics, stored, tables
from experiments.ccp.ablations import ccp_study, courses_of
from experiments.ccp.methods import FOUR_FOLDS, LOSSES, METHODS, NAMES, CcpOptions, ccp_spec
from experiments.figures import comparisons
from experiments.methods import expand_seeds, search_each
from experiments.params import Whole, parameters
from experiments.studies import study_rows, with_measures
from experiments.training.spec import RunSpec

PAIRS = tuple(f"{loss}{form}" for loss in LOSSES for form in ("", "-CCP-L"))
OTHERS = ("C1-XBM-L", "C2-XBM-L", "ProxyAnchor", "ProxyNCA++", "SoftTriple")
SMALL_MEMORY = ("C1-XBM-S", "C1-CCP-S", "C2-XBM-S", "C2-CCP-S")
SPREAD_METRICS = ("P@1", "MAP@R")


def retrieval_table(finished: Iterable, params: Any) -> pd.DataFrame:
    """The rows of the runs and the `steps` they took, and below them how far the metrics tell the methods apart."""
    table = with_measures(finished, courses_of, params)
    return pd.concat([table, *relative_spreads(table, params)], ignore_index=True)


def gains(table: pd.DataFrame, metric: str = "MAP@R") -> Figure:
    """What each loss gains by CCP, paired by seed, with 95 % t intervals."""
    rows = tables.final_rows(table)
    values = rows[rows["metric"] == metric].pivot(index="seed", columns="method", values="value")
    gained = {loss: (values[f"{loss}-CCP-L"] - values[loss]).dropna() for loss in LOSSES}
    effects = {f"{loss}-CCP-L": (each.mean(), *statistics.t_interval(each)) for loss, each in gained.items()}
    shown = f"{metric}, {stored.setup_in_words(rows)}, n = {len(values)} seeds"
    return comparisons.gains(effects, "the same loss within the batch", shown, names=NAMES)


def relative_spreads(table: pd.DataFrame, params: Any) -> Iterator[pd.DataFrame]:
    """How far each metric tells the trained methods apart: the deviation of their means over that of one method's
    seeds, which no scale of the metric changes. Rows of "methods", a jackknife pseudo-value per seed on the scale of
    logarithms; none of fewer than three seeds."""
    rows = tables.final_rows(table)
    rows = rows[rows["metric"].isin(SPREAD_METRICS) & ~rows["method"].isin(comparing.UNTRAINED)]
    for (metric, _), group in rows.groupby(["metric", "protocol"], sort=False):
        values = group.pivot_table(index="seed", columns="method", values="value").dropna()
        if min(values.shape) < 3 or not values.var().gt(0).all():
            continue
        whole, count = _log_spread(values), len(values)
        left_out = {seed: _log_spread(values.drop(index=seed)) for seed in values.index}
        spreads = [{"seed": s, "value": math.exp(count * whole - (count - 1) * less)} for s, less in left_out.items()]
        where = group[["dataset", "backbone", "dim", "protocol"]].iloc[0].to_dict()
        yield study_rows(params, spreads, method="methods", setting=f"of={metric}", metric="relative_spread", **where)


def _log_spread(values: pd.DataFrame) -> float:
    """The logarithm of the deviation between methods over that within, of scores (seeds, methods)."""
    return math.log(values.mean().std() / math.sqrt(values.var().mean()))


def specs_of(params: Any) -> list[RunSpec]:
    return [ccp_spec(name, params) for name in params.methods]


Retrieval = ccp_study(
    "41_ccp_retrieval",
    parameters(CcpOptions, methods=tuple[str, ...], search_trials=Whole),
    lambda params: expand_seeds(search_each(specs_of(params), METHODS, params), params),
    retrieval_table,
    profiles={
        "*": {"methods": ("untrained", *PAIRS, *OTHERS, *SMALL_MEMORY)},
        "quick": {"methods": ("untrained", "C2", "C2-CCP-L", "C2-XBM-L", "ProxyAnchor")},
        "paper": {"protocol": FOUR_FOLDS},
    },
)
# Tables III and IV: CCP beside the best of the others
Conventional = ccp_study(
    "47_ccp_conventional",
    # evaluations on the test set end a projection, as in the paper
    parameters(CcpOptions, methods=(tuple[str, ...], ("untrained", "C2-CCP-L", "MS-CCP-L", "ProxyAnchor", "MS"))),
    lambda params: expand_seeds(specs_of(params), params),
    profiles={"*": {"protocol": "conventional"}, "paper": {"batch_size": 96, "lr": 1e-5}},
)
