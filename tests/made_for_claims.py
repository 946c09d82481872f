"""Tables made from what a claim's test declares: one that fulfils it, and others for which the claim is false.

A table is a least-squares problem, in which every comparison of the test comes out by a given gap.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import pandas as pd

from experiments.analysis.claims import ClaimTest, Part, named
from experiments.analysis.comparing import UNTRAINED
from experiments.analysis.tables import FEATURES, START, Cell, Expression, settings_of

SEEDS = 10
RECALLS = ("R@1", "P@1", "RP", "MAP@R", "mAP@1000")
# far from zero, so that a gap in percent is one in numbers
POSITIVE = ("W2", "class_diversity", "feature_diversity", "proxy_spread", "average_covering_radius")
POSITIVE += ("inter_class_distance", "steps", "relative_spread")


def rows(method, values, setting="", metric="R@1", **context) -> list[dict]:
    base = {"paper": "pfml", "experiment": "x", "profile": "small", "dataset": "cub-subset", "backbone": "conv4"}
    base |= {"dim": 64, "protocol": "conventional", "selection": "last", "step": 100}
    return [
        base | {"method": method, "setting": setting, "metric": metric, "seed": seed, "value": value} | context
        for seed, value in enumerate(values)
    ]


def spread(mean, seeds=5, sd=0.3, seed=0):
    """`seeds` numbers of exactly this mean and standard deviation."""
    values = np.random.default_rng(seed).standard_normal(seeds)
    return mean + sd * (values - values.mean()) / values.std(ddof=1)


def everywhere(test: ClaimTest) -> list[str]:
    """The first data set that the claim names, and those of which its parts say something of their own."""
    return list(dict.fromkeys([named(test.claim_id)[0], *(name for part in test.parts for name in part.on)]))


def tuned(test: ClaimTest) -> dict[str, int]:
    return {method: 24 for method, *_ in _cells(test, test.parts)}


def fulfilling(test: ClaimTest, against: frozenset[int] = frozenset(), dataset: str = "") -> pd.DataFrame:
    """A table of one data set in which every part of a test holds clearly, but for those whose positions are in
    `against`: what they say is as clearly false."""
    dataset = dataset or everywhere(test)[0]
    parts = tuple(part for part in test.parts if part.speaks_of(dataset))
    cells = _cells(test, parts)
    lines, targets = [], []
    for index, part in enumerate(test.parts):
        if part.kind != "bound" and not _is_learned(part) and part in parts:
            for vector, target in _equations(part, cells, index in against):
                weight = 100 if index in against else 1  # what is reversed comes out, whatever the others want
                lines.append(weight * vector)
                targets.append(weight * target)
    values = np.array([_start(metric) for *_, metric in cells])
    if lines:
        lines, targets = np.array(lines), np.array(targets)
        values = values + np.linalg.lstsq(lines, targets - lines @ values, rcond=None)[0]
    for i, (method, setting, metric) in enumerate(cells):
        if (bound := _bound(test, method, setting, metric, against)) is not None:
            values[i] = bound
        if any(_is_learned(test.parts[j]) and method in test.parts[j].subject.methods for j in against):
            values[i] = 2.0
    return _table(test, dict(zip(cells, values)), dataset)


def _cells(test: ClaimTest, parts: tuple[Part, ...]) -> list[tuple[str, str, str]]:
    """(method, setting, metric) of every cell that parts name, both ends of a range, and what shows that it learned."""
    cells = {}
    for part in parts:
        for cell in (cell for cell in part.cells if cell.method != START):
            trained = part.about == "training" and cell.method not in UNTRAINED
            for end in ends_of(cell):
                for metric in (*part.metric.split(" / "), *([part.learned_on] if trained else ())):
                    cells[cell.method, end.setting, metric] = None
    return list(cells)


def ends_of(cell: Cell) -> list[Cell]:
    ends = [value if isinstance(value, tuple) else (value,) for value in cell.settings.values()]
    return [Cell(cell.method, dict(zip(cell.settings, levels))) for levels in itertools.product(*ends)]


def _weights(expression: Expression, metric: str, cells: list) -> np.ndarray:
    vector = np.zeros(len(cells))
    levels = [(Cell(name, settings_of(setting)), at) for name, setting, at in cells]
    for i, cell in enumerate(expression.cells):
        places = [index for index, (level, at) in enumerate(levels) if at == metric and cell.covers(level)]
        vector[places] += (1 if i == 0 else -1) / len(places)
    return vector


def _equations(part: Part, cells: list, against: bool) -> Iterator[tuple[np.ndarray, float]]:
    """(weights, target) of a part; a metric over another has the other at one."""
    metric = part.metric.split(" / ")[0]
    size = max(3 * part.smallest_effect, 3 * part.margin if against else 0, 0.05)
    gap = {"higher": size, "lower": -size, "flat": -size if against else 0}[part.direction]
    if part.kind == "noninferiority":
        gap = -3 * part.margin if against else 0
    elif against and part.direction != "flat":
        gap = -gap
    subjects = [part.subject]
    if part.kind in ("equivalence", "bound") or not part.baselines:
        subjects = [Expression((end,)) for cell in part.subject.cells for end in ends_of(cell)]
    if not part.baselines:
        for x, subject in enumerate(subjects):
            yield _weights(subject, metric, cells), _start(metric) + gap * x
        return
    for baseline, subject in itertools.product(part.baselines, subjects):
        if baseline.is_constant:
            yield _weights(subject, metric, cells), baseline.zero + gap
        elif subject != baseline:
            yield _weights(subject, metric, cells) - _weights(baseline, metric, cells), gap


def _bound(test: ClaimTest, method: str, setting: str, metric: str, against: frozenset[int]) -> float | None:
    """The value that just obeys every exact part about a cell, or clearly disobeys one of `against`."""
    allowed = []
    for index, part in enumerate(test.parts):
        same = part.kind == "bound" and part.metric == metric
        if same and part.subject.cells[0].covers(Cell(method, settings_of(setting))):
            sign, bound = (1 if part.direction == "higher" else -1), part.baselines[0].zero
            if index in against:
                return bound - sign * (2 * part.margin + 0.1 * abs(bound) + 0.01)
            allowed.append((sign, bound + sign * part.smallest_effect))
    return (max if allowed[0][0] > 0 else min)(bound for _, bound in allowed) if allowed else None


def _start(metric: str) -> float:
    return 70.0 if metric in RECALLS else 100.0 if metric in POSITIVE else 1.0


def _table(test: ClaimTest, values: dict, dataset: str) -> pd.DataFrame:
    bounded = {part.metric for part in test.parts if part.kind == "bound"}
    exact = bounded | {part.metric for part in test.parts if part.about == "study"}
    context = {"protocol": test.protocol or "conventional", "backbone": test.network or "conv4"}
    noise = np.random.default_rng(0).standard_normal((len(values), SEEDS)) * 1e-3
    lines = []
    for ((method, setting, metric), value), wobble in zip(values.items(), noise):
        # a level that is said to be like another differs from it by no seed's chance alone
        numbers = value + wobble * (metric not in bounded)
        where = {"dataset": "synthetic" if metric in exact else dataset}
        lines += rows(method, numbers, setting, metric, **where, **context)
    for metric in {metric for _, _, metric in values if metric in RECALLS}:
        lines += rows(START, [10.0] * SEEDS, metric=metric, dataset=dataset, **context)
    return pd.DataFrame(lines)


def _is_learned(part: Part) -> bool:
    return part.kind == "noninferiority" and part.baselines[0].methods == {START}


def adversaries(test: ClaimTest) -> dict[str, pd.DataFrame]:
    """{what is wrong: a table}: everything equal, a part reversed, the subject or all methods at a floor or below the
    pretrained features, a collapsed embedding, an end of a range not measured, four seeds, another network. What is
    wrong with a control of ours alone makes no claim false."""
    good = fulfilling(test)
    exact = good["metric"].isin({part.metric for part in test.parts if part.about == "study"})
    speaking = [i for i, part in enumerate(test.parts) if part.speaks_of(everywhere(test)[0]) and not part.control]
    tables = {f"part {index} reversed": fulfilling(test, frozenset({index})) for index in speaking}
    tables["everything reversed"] = fulfilling(test, frozenset(speaking))
    own = good["method"] != START
    if any(part.smallest_effect for part in test.deciding):
        level = good["metric"].map(lambda metric: _level(test, metric))
        tables["all equal"] = good.assign(value=good["value"].where(~own, level + _wobble(good)))
    recall = good["metric"].isin(RECALLS) & own
    subjects = {part.subject.cells[0].method for part in test.deciding}
    for method in sorted(subjects.intersection(good.loc[recall, "method"])):
        tables[f"{method} at a floor"] = _lowered(good, recall & (good["method"] == method))
    if recall.any():
        tables["all at a floor"] = _lowered(good, recall)
    if any(part.about == "training" and part.metric in RECALLS and part.kind != "bound" for part in test.deciding):
        features = good[good["method"] == START].assign(method=FEATURES, dim=0, value=200.0)
        tables["all below the pretrained features"] = pd.concat([good, features], ignore_index=True)
    distances = good["metric"].isin(["W2", "intra_class_distance"])
    for method in dict.fromkeys(str(part.subject) for part in test.deciding if " / " in part.metric):
        of_method = distances & (good["method"] == method)
        shrunk = good["value"] / np.where(good["metric"] == "W2", 50, 100)
        tables[f"{method} collapsed"] = good.assign(value=good["value"].where(~of_method, shrunk))
    ranges = [cell for part in test.deciding for cell in part.cells if cell.ranges]
    for method, setting in dict.fromkeys((cell.method, end.setting) for cell in ranges for end in ends_of(cell)):
        tables[f"{method} without {setting}"] = good[(good["method"] != method) | (good["setting"] != setting)]
    if not exact.all():
        tables["four seeds"] = good[exact | (good["seed"] < 4)]
        if test.network:
            tables["another network"] = good.assign(backbone="conv4")
    return tables


def _level(test: ClaimTest, metric: str) -> float:
    """A constant that a part of the test has for this metric, else any number."""
    constants = [baseline for part in test.parts if part.metric == metric for baseline in part.baselines]
    return next((constant.zero for constant in constants if constant.is_constant), 50.0)


def _wobble(table: pd.DataFrame) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(len(table)) * 1e-6 * (table["dataset"] != "synthetic")


def _lowered(table: pd.DataFrame, where: pd.Series) -> pd.DataFrame:
    return table.assign(value=table["value"].where(~where, 2.0 + _wobble(table)))


def hits_of(shares, seeds=2, queries=100, **context):
    """Counts of 100 queries per class: {method: share of hits (classes,)}, the same in every seed."""
    base = {"experiment": "x", "profile": "small", "dataset": "cub-subset", "backbone": "conv4", "dim": 64}
    base |= {"protocol": "conventional", "setting": "", "queries": queries}
    return pd.DataFrame(
        base | {"method": method, "seed": seed, "class_id": c, "hits": queries * share} | context
        for method, of_class in shares.items()
        for seed in range(seeds)
        for c, share in enumerate(of_class)
    )
