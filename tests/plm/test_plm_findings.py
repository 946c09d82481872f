"""What the pages of PLM say turns when the numbers do, and the toy manifold shows what the text beside it says."""

import numpy as np
import pandas as pd
from finished_tables import as_if_finished

from experiments.analysis import stored
from experiments.plm import retrieval
from experiments.report import catalogue


def said(number, values):
    """The sentences of a notebook whose rows have these values by "method;setting", others 50."""
    table = as_if_finished(number, metrics=["R@1", "MAP@R"], extra=["network=teacher"] if number == "50" else ())
    cells = (table["method"] + ";" + table["setting"]).str.removesuffix(";")
    assert set(values) <= set(cells)
    table["value"] = [values.get(cell, 50.0) for cell in cells]
    return " ".join(stored.say(table, catalogue.find(number).findings))


def test_the_momentum_network_stands_beside_the_one_that_is_evaluated():
    assert "has 55.0 against 50.0 R@1" in said("50", {"PLM;network=teacher": 55})


def test_plm_is_compared_with_the_network_that_it_begins_with_here_and_as_published():
    sentences = said("50", {"PLM": 53, "PLM;settings=published": 41})
    assert "53.0 against 50.0 R@1" in sentences and "41.0 against 50.0 R@1" in sentences


def test_distances_are_told_as_they_are_and_as_they_are_asked_for():
    params = catalogue.find("50").configured({})
    table = pd.concat(
        as_if_finished("50", metrics=[name]).assign(value=value)
        for name, value in zip(retrieval.DISTANCES, (0.99, 0.8, 0.4, 0.35))
    )
    published = table[(table["method"] == "random head") & (table["metric"] == "mean_asked")]
    table = pd.concat([table, published.assign(setting=retrieval.AS_PUBLISHED, value=1.6)])
    assert params.delta == 1
    (sentence,) = stored.say(table, catalogue.find("50").findings)
    assert "are 0.99 apart; Eq. 6 asks for 0.80, and for 1.60 with the published settings" in sentence


def test_a_piece_has_as_many_members_as_it_must_and_what_the_threshold_admits():
    table = as_if_finished("51", metrics=["members"]).assign(method="PLM")
    for members, words in ((4.0, "admits nobody else"), (5.5, "admits 1.50 more")):
        (sentence,) = stored.say(table.assign(value=members), catalogue.find("51").findings)
        assert f"{members:.1f} members on average" in sentence and words in sentence


def test_pieces_of_the_toy_manifold_follow_it_and_all_neighbours_do_not():
    curve, everywhere, farthest = retrieval.toy_manifold(), retrieval.toy_manifold(1000, noise=0), {}
    for quality in (0.9, 0.0):
        ends = retrieval.toy_pieces(curve, quality=quality)
        along = ends[:, :1] + np.linspace(0, 1, 20)[None, :, None] * (ends[:, 1:] - ends[:, :1])
        farthest[quality] = np.linalg.norm(along[:, :, None] - everywhere, axis=-1).min(2).max()
    assert len(retrieval.toy_pieces(curve)) > len(retrieval.toy_pieces(curve, quality=0.0))
    assert 2 * farthest[0.9] < farthest[0.0], farthest
