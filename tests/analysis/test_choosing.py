"""The chooser on made tables: it recommends nothing on noise, and finds what is five points ahead."""

import numpy as np
import pytest
from scipy import special

from experiments.analysis import choosing
from experiments.analysis.choosing import choose, simultaneous

CLASSES, FOLDS = 32, 4  # that are held out in turns, as those of notebook 01
UNTRAINED = ["features", "PCA", "whitened"]


def made(rng, effects, classes=CLASSES, seeds=FOLDS, of_class=3.5, of_seed=0.7, of_cell=1.5):
    """Scores of candidates whose true means differ by `effects` (M,): (candidate, seed, class), and query counts.

    Classes differ in how hard they are, for all candidates alike, and in what each candidate makes of them. Every
    fourth candidate is a loss of its own, the three after it are other settings of it and go with it. Skewed noise. A
    difference of two losses varies by 5 points from class to class, as measured on glyphs (4 to 7).
    """
    count = len(effects)
    level = rng.normal(40, 15, classes)
    families = np.repeat(rng.gamma(2.0, 1.0, (-(-count // 4), classes)), 4, axis=0)[:count] - 2.0
    own = rng.normal(size=(count, classes))
    taste = of_class * (0.8 * families / np.sqrt(2) + 0.6 * own)
    scores = level + taste[:, None] + of_seed * rng.normal(size=(count, seeds, 1))
    scores = np.asarray(effects)[:, None, None] + scores + of_cell * rng.normal(size=(count, seeds, classes))
    fold = np.arange(classes) * FOLDS // classes
    scores[:, np.arange(seeds)[:, None] % FOLDS != fold[None]] = np.nan
    return scores, rng.integers(8, 40, classes)


def named(scores):
    names = [*UNTRAINED, *(f"loss {number}" for number in range(len(scores) - len(UNTRAINED)))]
    return dict(zip(names, scores))


@pytest.mark.parametrize("seeds, classes", [(4, 32), (8, 32), (4, 16), (2, 100)])
def test_a_loss_that_helps_nothing_is_recommended_in_at_most_one_of_twenty_tables(seeds, classes):
    """Nine losses in four settings each, all as good as the best untrained row: the hardest case."""
    rng, tables = np.random.default_rng(seeds + classes), 200
    wrong = 0
    for _ in range(tables):
        scores, queries = made(rng, np.zeros(39), classes, seeds)
        wrong += choose(named(scores), queries, UNTRAINED).chosen not in UNTRAINED
    assert wrong <= 0.05 * tables


def test_where_some_losses_hurt_and_some_help_little_the_recommended_is_seldom_worse():
    """Six losses between five points worse and two better, as on natural images."""
    rng, tables, worse = np.random.default_rng(1), 200, 0
    for _ in range(tables):
        effects = np.r_[0.0, rng.normal(-1, 1, 2), rng.uniform(-5, 2, 6)]
        scores, queries = made(rng, effects)
        chosen = choose(named(scores), queries, UNTRAINED).chosen
        worse += effects[list(named(scores)).index(chosen)] < effects[:3].max() and chosen not in UNTRAINED
    assert worse <= 0.05 * tables


@pytest.mark.parametrize("seeds, classes", [(8, 32), (4, 50), (4, 100)])
def test_a_loss_that_is_five_points_ahead_is_recommended_in_four_tables_of_five(seeds, classes):
    rng, tables, recommended = np.random.default_rng(2), 100, 0
    for _ in range(tables):
        effects = np.zeros(39)
        effects[7] = 5.0
        scores, queries = made(rng, effects, classes, seeds)
        recommended += choose(named(scores), queries, UNTRAINED).chosen == "loss 4"
    assert recommended >= 0.8 * tables


def test_intervals_of_a_single_difference_cover_it():
    rng, tables, covered = np.random.default_rng(3), 400, 0
    for _ in range(tables):
        (one, other), queries = made(rng, [0.0, 3.0], classes=20)
        interval = simultaneous((other - one)[None], queries)
        covered += interval.low[0] <= 3.0 <= interval.high[0]
    assert 0.925 * tables <= covered <= 0.99 * tables


def test_the_mean_weights_classes_by_their_queries_and_the_alike_are_named():
    level, turn = np.array([[10.0, 20.0, 30.0, 40.0, 50.0, 60.0]]), np.array([[1, -1, 1, -1, 1, -1]])
    scores = {"features": level, "as good": level + 20 - turn, "good": level + 20.5 + turn}
    choice = choose(scores, np.array([1, 1, 1, 1, 1, 2]), ["features"])
    assert choice.means["features"] == pytest.approx(270 / 7)
    assert choice.chosen == "good" and choice.alike == ["as good"] and choice.reference == "features"
    assert (choice.classes, choice.seeds) == (6, 1)
    assert choice.gains["features"] == (0.0, 0.0, 0.0)


def test_seeds_that_disagree_widen_the_intervals():
    rng = np.random.default_rng(4)
    (one, other), queries = made(rng, [0.0, 3.0], of_seed=0.0)
    quiet = simultaneous((other - one)[None], queries)
    shifted = other + np.array([-6.0, 6.0, -6.0, 6.0])[:, None]
    loud = simultaneous((shifted - one)[None], queries)
    assert loud.high[0] - loud.low[0] > 1.5 * (quiet.high[0] - quiet.low[0])


def test_one_class_decides_nothing_and_what_does_not_match_is_refused():
    alone = simultaneous(np.array([[[50.0]]]), np.array([10]))
    assert np.isinf(alone.low[0]) and not alone.above[0]
    with pytest.raises(ValueError, match="untrained must name some of the candidates A"):
        choose({"A": np.zeros((1, 2))}, np.ones(2), ["B"])
    with pytest.raises(ValueError, match="scored on the same classes"):
        choose({"A": np.zeros((1, 2)), "B": np.array([[0, np.nan]])}, np.ones(2), ["A"])
    assert choosing.choose({"A": np.zeros((1, 2))}, np.ones(2), ["A"]).chosen == "A"


def test_the_quantile_is_students_for_one_class_less_than_there_effectively_are(monkeypatch):
    quantile, degrees = special.stdtrit, []
    monkeypatch.setattr(special, "stdtrit", lambda df, p: degrees.append(df) or quantile(df, p))
    differences = np.random.default_rng(0).normal(size=(2, 1, 12))
    simultaneous(differences, np.full(12, 7))
    simultaneous(differences, np.r_[np.full(6, 7), np.full(6, 1e-9)])
    assert degrees == pytest.approx([11, 5])
