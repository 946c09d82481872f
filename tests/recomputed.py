"""The ledger recomputed from the CSVs of results/ alone, by docs/conventions.md; imports nothing of ours."""

import functools
import math
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

RESULTS = Path(__file__).parents[1] / "results"
DEFAULTS = {"label_noise": 0.0, "retrieval": "cosine"}
RETRIEVAL = ("R@", "P@1", "RP", "MAP@R", "mAP@")
BY_ROWS = ("bound", "rank")
LEVEL = 0.05
RUN = ["dataset", "dim", "protocol", "method", "setting", "seed", "metric"]


@functools.cache
def read(name: str) -> pd.DataFrame:
    return pd.read_csv(RESULTS / f"{name}.csv", keep_default_na=False, na_values={"p": "", "p_holm": "", "effect": ""})


@functools.cache
def table(profile: str, stem: str) -> pd.DataFrame:
    """One value by run and metric: of several selections `val_best` before `last`, at the last step."""
    rows = read(f"{profile}/{stem}").astype({"dim": str})
    rows = rows[rows["selection"].isin(["val_best", "last"])]
    rows = rows.sort_values(["selection", "step"], ascending=[True, True], kind="stable")  # last, val_best
    return rows.drop_duplicates(RUN, keep="last")


def setting(text: str) -> dict:
    """ "delta=0.1..0.3;M=8" -> {"delta": (0.1, 0.3), "M": 8.0}"""
    named = {}
    for part in filter(None, text.split(";")):
        name, _, value = part.partition("=")
        ends = value.split("..")
        try:
            named[name] = tuple(map(float, ends)) if len(ends) == 2 else float(value)
        except ValueError:
            named[name] = value
    return named


def fits(wanted: dict, given: dict) -> bool:
    def one(want, value):
        return want[0] <= value <= want[1] if isinstance(want, tuple) else want == value

    wanted, given = DEFAULTS | wanted, DEFAULTS | given
    return wanted.keys() == given.keys() and all(one(wanted[name], given[name]) for name in wanted)


def levels(rows: pd.DataFrame, cell: str, metric: str) -> dict[str, pd.Series]:
    """setting -> values by seed of every level that a cell covers."""
    above, _, below = metric.partition(" / ")
    if below:
        under = levels(rows, cell, below)
        return {name: values / under[name] for name, values in levels(rows, cell, above).items()}
    method, _, text = cell.partition(";")
    own = rows[(rows["method"] == method) & (rows["metric"] == metric)]
    found = {name: of.set_index("seed")["value"] for name, of in own.groupby("setting") if name != "curve"}
    return {name: values for name, values in found.items() if fits(setting(text), setting(name))}


def mean(rows: pd.DataFrame, cell: str, metric: str) -> pd.Series:
    return pd.concat(levels(rows, cell, metric).values(), axis=1).dropna().mean(axis=1)


def context(row) -> pd.DataFrame:
    """The rows that a comparison may use: those of its context, and of networks without a head."""
    rows = table(row.profile, row.stem)
    if row.dataset == "synthetic":
        return rows[rows["dataset"] == "synthetic"]
    here = (rows["dataset"] == row.dataset) & (rows["protocol"] == row.protocol)
    return rows[here & rows["dim"].isin([str(row.dim), "0"])]


def effects(row) -> np.ndarray | None:
    """By seed, positive as claimed, logarithms of ratios where relative; None where the table holds no such rows, as of
    times, which are ratios of costs."""
    rows = context(row)
    if not set(row.metric.split(" / ")) <= set(rows["metric"]):
        return None
    sign = -1 if row.direction == "lower" else 1
    if not row.baseline:
        by_level = levels(rows, row.subject, row.metric)
        (name,) = (name for name, value in setting(row.subject.partition(";")[2]).items() if isinstance(value, tuple))
        x = np.array([setting(text)[name] for text in by_level])
        values = pd.concat(by_level.values(), axis=1).dropna().to_numpy()
        return sign * np.ptp(x) * np.array([np.polyfit(x, seed, 1)[0] for seed in values])
    one, other = (side(rows, text, row.metric) for text in (row.subject, row.baseline))
    paired = (
        pd.concat([one, other], axis=1).dropna() if isinstance(other, pd.Series) else one.to_frame().assign(b=other)
    )
    one, other = paired.iloc[:, 0].to_numpy(), paired.iloc[:, 1].to_numpy()
    return sign * (np.log(one / other) if row.relative else one - other)


def side(rows: pd.DataFrame, text: str, metric: str) -> pd.Series | float:
    try:
        return float(text)
    except ValueError:
        first, *others = (mean(rows, cell, metric) for cell in text.split(" - "))
        return first - sum(others)


def unit(row, size: float) -> float:
    return abs(math.log1p((-1 if row.direction == "lower" else 1) * size / 100)) if row.relative else size


def p_values(row, values: np.ndarray) -> dict[str, float]:
    sesoi = unit(row, row.smallest_effect)
    margin = -math.log1p(-row.margin / 100) if row.relative else row.margin

    def above(sample, bound):
        if np.ptp(sample) == 0:
            return float(sample.mean() <= bound)
        return float(stats.ttest_1samp(sample, bound, alternative="greater").pvalue)

    def within(size):
        return max(above(values, -size), above(-values, -size)) if size else 1.0

    if row.kind == "bound":
        obeyed = (values >= sesoi - margin).all()
        return {"supported": float(not obeyed), "contradicted": float(obeyed)}
    if row.kind == "rank":
        return {name: float(not (s * values >= sesoi).all()) for s, name in ((1, "supported"), (-1, "contradicted"))}
    if row.kind == "equivalence":
        outside = min(1.0, 2 * min(above(values, margin), above(-values, margin)))
        return {"supported": within(margin), "contradicted": outside}
    if row.kind == "noninferiority":
        return {"supported": min(1.0, 2 * above(values, -margin)), "contradicted": min(1.0, 2 * above(-values, margin))}
    far = {
        name: min(1.0, 2 * above(s * values, 0)) if s * values.mean() >= sesoi else 1.0
        for s, name in ((1, "supported"), (-1, "contradicted"))
    }
    return far | {"equivalent": within(sesoi)}


def is_below(row) -> bool:
    """Whether the better side of a comparison of retrieval lies below the pretrained features."""
    rows = context(row)
    if not row.metric.startswith(RETRIEVAL) or row.kind in ("bound", "noninferiority"):
        return False
    cells = [cell for text in (row.subject, row.baseline) if text for cell in text.split(" - ")]
    cells = [cell for cell in cells if cell not in ("untrained", "random head")]
    if not row.baseline:
        means = [values.mean() for values in levels(rows, row.subject, row.metric).values()]
    else:
        means = [mean(rows, cell, row.metric).mean() for cell in cells if not cell.replace(".", "").isdigit()]
    return max(means) < mean(rows, "untrained", row.metric).mean()


def outcome(p: dict[str, float]) -> str:
    return next((name for name in ("supported", "contradicted", "equivalent") if p.get(name, 1.0) < LEVEL), "open")


def holm(p: dict[str, float], family: int) -> dict[str, float]:
    """Claim -> p after Holm; claims that are not given count as 1."""
    adjusted, least = {}, 0.0
    for place, claim in enumerate(sorted(p, key=p.__getitem__)):
        least = adjusted[claim] = min(1.0, max(least, p[claim] * (family - place)))
    return adjusted


def word(outcomes: list[str], p_supported: float, p_contradicted: float, universal: bool) -> str:
    n = len(outcomes)
    k, against, same = (outcomes.count(name) for name in ("supported", "contradicted", "equivalent"))
    if k == n:
        return "supported" if p_supported < LEVEL else "inconclusive"
    if against and (k == 0 or universal):
        return "contradicted" if p_contradicted < LEVEL else "inconclusive"
    if k:
        return "mixed" if against or same else "supported in part"
    return "equivalent" if same * 2 >= n else "inconclusive"
