"""Which of many candidates is clearly better than the best network that nobody trained, on classes held out for that.

The same queries are scored by all candidates, so they are compared by paired differences, and what matters is how far
other classes and other seeds could move these: intervals hold for all candidates together (max-t), because the best of
many is picked on noise otherwise. That nothing is clearly better is an answer.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from experiments.analysis.statistics import LEVEL

DRAWS = 2000  # of the classes
LEAST_CLASSES = 2.0  # that a spread can be seen among


class Intervals(NamedTuple):
    """Mean differences (M,) in the unit of the scores, with 95 % intervals that hold for all M together."""

    effect: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def above(self) -> np.ndarray:
        """Which of them, bool (M,), are clearly above 0."""
        return self.low > 0


@dataclass(frozen=True)
class Choice:
    """Who is recommended, by name, and what that rests on.

    chosen: the best of those that are clearly better than `reference`, else the reference itself.
    reference: the best of the untrained.
    means: the mean score by candidate, the best first.
    gains: by candidate (effect, low, high) of the difference to the reference, intervals simultaneous.
    alike: whoever cannot be told from the chosen, by intervals that are simultaneous too.
    classes, seeds: how many of them scored.
    """

    chosen: str
    reference: str
    means: dict[str, float]
    gains: dict[str, tuple[float, float, float]]
    alike: list[str]
    classes: int
    seeds: int


def choose(scores: Mapping[str, np.ndarray], queries: np.ndarray, untrained: Collection[str]) -> Choice:
    """The candidate to recommend.

    Args:
        scores: by candidate the mean score of each class under each seed (S, C), NaN where a seed did not score it.
        queries: (C,) how many queries a class has, its weight.
        untrained: names of those candidates that nobody trained.

    Raises:
        ValueError: no candidate is untrained, or two were not scored on the same classes.
    """
    names = list(scores)
    everything = np.stack([scores[name] for name in names])
    if not set(untrained) & set(names):
        raise ValueError(f"untrained must name some of the candidates {', '.join(names)}, got {sorted(untrained)}")
    known = ~np.isnan(everything)
    if (known != known[:1]).any():
        raise ValueError("scores: every candidate must be scored on the same classes by the same seeds")
    weights = np.where(known[0], queries, 0.0)
    means = (np.nan_to_num(everything) * weights).sum((1, 2)) / weights.sum()
    ranked = sorted(range(len(names)), key=lambda i: -means[i])
    reference = next(i for i in ranked if names[i] in untrained)
    gains = simultaneous(everything - everything[reference], queries)
    better = [i for i in ranked if gains.above[i] and names[i] not in untrained]
    chosen = better[0] if better else reference
    apart = simultaneous(everything[chosen] - everything, queries)
    return Choice(
        names[chosen],
        names[reference],
        {names[i]: float(means[i]) for i in ranked},
        {names[i]: (float(gains.effect[i]), float(gains.low[i]), float(gains.high[i])) for i in ranked},
        [names[i] for i in ranked if i != chosen and apart.low[i] <= 0],
        int(known[0].any(0).sum()),
        int(known[0].any(1).sum()),
    )


def simultaneous(differences: np.ndarray, queries: np.ndarray, level: float = 1 - LEVEL, seed: int = 0) -> Intervals:
    """Intervals of mean differences over classes and seeds that hold for all candidates together.

    The classes are drawn anew, with all their queries, for all candidates at once, which keeps how these go together
    (a max-t bootstrap). To that come the seeds, as a component of variance that is pooled over candidates, since few
    seeds know it badly; a single seed knows none. The quantile is Student's for as many classes as there effectively
    are: few classes give wide intervals, a single one gives infinite ones.

    Args:
        differences: (M, S, C) as in `choose`; a candidate that is compared with itself has 0 everywhere.
        queries: (C,) as in `choose`.
    """
    from scipy import special

    known = ~np.isnan(differences[0])
    weights = np.where(known, queries, 0.0)  # (S, C)
    values = np.nan_to_num(differences)
    total = weights.sum()
    effect = (values * weights).sum((1, 2)) / total
    by_class = np.einsum("msc,sc->mc", values, weights)
    of_class = weights.sum(0)
    effective = of_class.sum() ** 2 / (of_class**2).sum()
    if effective < LEAST_CLASSES:
        return Intervals(effect, np.full_like(effect, -np.inf), np.full_like(effect, np.inf))
    draws = np.random.default_rng(seed).multinomial(len(of_class), np.full(len(of_class), 1 / len(of_class)), DRAWS)
    drawn = draws @ of_class
    draws, drawn = draws[drawn > 0], drawn[drawn > 0]
    moved = (draws @ by_class.T) / drawn[:, None] - effect  # (draws, M)
    of_classes = moved.var(0)
    between = np.where(np.abs(values).max((1, 2)) > 0, _between_seeds(values, weights), 0.0)
    moved = moved + np.random.default_rng(seed + 1).normal(size=moved.shape) * np.sqrt(between)
    spread = np.sqrt(of_classes + between)
    moving = spread > 1e-12
    normal = np.quantile(np.abs(moved[:, moving] / spread[moving]).max(1, initial=0.0), level)
    student = special.stdtrit(effective - 1, special.ndtr(normal))
    half = student * np.sqrt(of_classes * effective / (effective - 1) + between)
    return Intervals(effect, effect - half, effect + half)


def _between_seeds(values: np.ndarray, weights: np.ndarray) -> float:
    """The variance of the mean over seeds, of differences (M, S, C), that seeds cause and not their classes; pooled
    over those candidates that differ from the reference at all."""
    seeds = [s for s in range(len(weights)) if weights[s].any()]
    differing = np.abs(values).max((1, 2)) > 0
    if len(seeds) < 2 or not differing.any():
        return 0.0
    values, variances = values[differing], []
    for number, one in enumerate(seeds):
        for other in seeds[number + 1 :]:
            shares = [weights[s] / weights[s].sum() for s in (one, other)]
            apart = values[:, one] * shares[0] - values[:, other] * shares[1]  # (M, C), adds up to the difference
            means = [values[:, s] @ share for s, share in zip((one, other), shares)]
            centred = apart - means[0][:, None] * shares[0] + means[1][:, None] * shares[1]
            difference = means[0] - means[1]
            variances.append((difference**2 - (centred**2).sum(1)) / 2)
    share = np.array([weights[s].sum() for s in seeds]) / weights.sum()
    return max(0.0, float(np.mean(variances))) * float((share**2).sum())
