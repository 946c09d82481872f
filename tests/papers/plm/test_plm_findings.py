"""What the pages of PLM say turns when the numbers do, and the toy manifold shows what the text beside it says."""

import numpy as np
import pytest
from finished_tables import as_if_finished

from dmlrepro.evidence import stored
from dmlrepro.papers import catalogue
from dmlrepro.papers.plm import retrieval


def said(number, values, metric="R@1"):
    """The sentences of a notebook whose rows have these values by "method;setting", others 50."""
    table = as_if_finished(number, metrics=[metric], extra=["network=teacher"] if number == "50" else ())
    cells = (table["method"] + ";" + table["setting"]).str.removesuffix(";")
    assert set(values) <= set(cells)
    table["value"] = [values.get(cell, 50.0) for cell in cells]
    return " ".join(stored.say(table, catalogue.find(number).findings))


DEFAULTS = {"50": "PLM", "52": "PLM;N_rho=100", "53": "PLM;m=3", "54": "PLM;N_alpha=4;N_beta=0.5", "55": "PLM;delta=2"}
DEFAULTS |= {"56": "PLM"}


@pytest.mark.parametrize("number", DEFAULTS)
def test_a_page_begins_with_whether_plm_learned_anything(number):
    cell = DEFAULTS[number]
    assert said(number, {cell: 60}).startswith("PLM learns without a label: 60.0 against 50.0")
    assert said(number, {cell: 52}).startswith("PLM learns next to nothing here: 52.0 against 50.0")
    assert said(number, {}).startswith("PLM learns nothing here: 50.0 against 50.0")
    assert said(number, {cell: 40}).startswith("PLM learns nothing here: 40.0 against 50.0")
    assert said(number, {cell: 55, "random head": 60}).startswith("PLM learns nothing here: 55.0 against 60.0")


EQUAL = ("PLM;N_alpha=1;N_beta=1", "PLM;N_alpha=1.5;N_beta=1.5")
WHOLE = "PLM;N_alpha=4;N_beta=0.5"


@pytest.mark.parametrize(
    ("number", "values", "sentence", "otherwise", "against"),
    [
        ("50", {"PLM": 60}, "PLM comes first of 6", {"K-Means": 60}, "K-Means comes first of 6"),
        ("50", {"K-Means": 60}, "Of 6 methods 1 end above", {}, "Of 6 methods 0 end above"),
        ("52", {"PLM;N_rho=100": 60}, "of none raises R@1, as", {"PLM;N_rho=0": 60}, "of none costs R@1, against"),
        ("52", {}, "stable, which says", {"PLM;N_rho=100": 60}, "not stable, against the paper: at N_rho="),
        ("53", {"PLM;m=3": 60}, "of three costs R@1, as", {"PLM;m=7": 60}, "of three raises R@1, against"),
        (
            "54",
            {WHOLE: 60},
            "(N_beta 0) costs R@1, as",
            {"PLM;N_alpha=4;N_beta=0": 60},
            "(N_beta 0) raises R@1, against",
        ),
        ("54", {WHOLE: 60}, "about 10, as", {WHOLE: 60, EQUAL[0]: 55, EQUAL[1]: 58}, "about 10, against"),
        ("55", {"PLM;delta=2": 60}, "is delta 2 with", {"PLM;delta=0.5": 60}, "is delta 0.5 with 60.0"),
        ("56", {"PLM": 60}, "is needed, as", {"PLM": 60, "PLM;momentum=0": 61}, "is not all needed, against"),
        ("56", {"PLM": 60}, "points there) costs R@1, as", {"PLM;similarity=binary": 60}, "raises R@1, against"),
        ("56", {"PLM": 60}, "(3.3 points there) costs R@1, as", {}, "hardly changes R@1, which says little"),
    ],
)
def test_a_sentence_turns_with_its_numbers(number, values, sentence, otherwise, against):
    assert sentence in said(number, values) and against not in said(number, values)
    assert against in said(number, otherwise) and sentence not in said(number, otherwise)


def test_a_flat_curve_counts_only_for_a_method_that_learned():
    every = {f"PLM;delta={delta:g}": 60.0 for delta in (0.2, 0.5, 1, 1.5, 2)}
    assert "is stable, as the paper has it" in said("55", every)
    assert "is stable, which says little" in said("55", {})


def test_pieces_are_compared_with_clusters_and_with_plain_neighbours():
    def sentences(**values):
        table = as_if_finished("51", metrics=["label_purity"])
        rows = [table.assign(method=name.replace("_", "-"), value=value) for name, value in values.items()]
        return " ".join(stored.say(stored.pd.concat(rows), catalogue.find("51").findings))

    pure = sentences(PLM=0.6, K_Means=0.4, Hierarchical=0.5, nearest=0.595)
    assert "are purer than clusters, as the paper has it: PLM 0.60" in pure
    assert "does no better than as many nearest neighbours, 0.600 against 0.595" in pure
    mixed = sentences(PLM=0.45, K_Means=0.4, Hierarchical=0.5, nearest=0.4)
    assert "are not purer than clusters, against the paper" in mixed and "beats as many nearest" in mixed


def test_pieces_of_the_toy_manifold_follow_it_and_all_neighbours_do_not():
    curve, everywhere, farthest = retrieval.toy_manifold(), retrieval.toy_manifold(1000, noise=0), {}
    for quality in (0.9, 0.0):
        ends = retrieval.toy_pieces(curve, quality=quality)
        along = ends[:, :1] + np.linspace(0, 1, 20)[None, :, None] * (ends[:, 1:] - ends[:, :1])
        farthest[quality] = np.linalg.norm(along[:, :, None] - everywhere, axis=-1).min(2).max()
    assert len(retrieval.toy_pieces(curve)) > len(retrieval.toy_pieces(curve, quality=0.0))
    assert 2 * farthest[0.9] < farthest[0.0], farthest
