"""What notebooks 20 to 26 say of a table: every sentence turns with its numbers, and none is said without its rows."""

import pytest

from dmlrepro.evidence import results, stored
from dmlrepro.papers.nivmf import certainty, cost, distances, diversity, normalizer, omega, retrieval
from dmlrepro.papers.nivmf.methods import JOINT

ABOVE, BETWEEN, BELOW = (80.0, 81.0), (75.0, 76.0), (70.0, 72.0)  # by seed


def said(module, rows):
    """The findings of a module in a table; rows: {(method, setting, metric): values by seed}."""
    common = {"paper": "nivmf", "experiment": "2x", "profile": "small", "dataset": "birds", "protocol": "conventional"}
    table = results.frame(
        common | {"method": method, "setting": setting, "metric": metric, "seed": seed, "value": value}
        for (method, setting, metric), values in rows.items()
        for seed, value in enumerate(values)
    )
    return stored.say(table, module.FINDINGS)


def recalls(above, below, between=()):
    cells = dict.fromkeys(above, ABOVE) | dict.fromkeys(between, BETWEEN) | dict.fromkeys(below, BELOW)
    return {(*cell.partition(";")[::2], "R@1"): values for cell, values in cells.items()}


def measured(metric, values):
    return {(*cell.partition(";")[::2], metric): value for cell, value in values.items()}


AT_ZERO, RELEASED, LARGE = f"{JOINT};omega=0", f"{JOINT};omega=1", f"{JOINT};omega=1000"
SAMPLERS = {"A_M;dim=512;kappa=50": [0.1]}
DENSITIES = ("heuristic D(K);kappa=20,20,20", "heuristic D(K);kappa=20,5,50")
# module, rows and what a sentence says of them, other rows and what it says then
TURNS = (
    (retrieval, recalls([JOINT], ["ProxyAnchor"]), f"{JOINT} has the highest R@1 of 2 losses, as the paper",
     recalls(["ProxyAnchor"], [JOINT]), f"against the paper, whose Table 1 has {JOINT} first"),
    (retrieval, recalls(["EL-nivMF"], ["ProxyNCA++"]), "brings a gain, as the paper has it: 80.5 against 71.0",
     recalls(["ProxyNCA++"], ["EL-nivMF"]), "brings a loss, against the paper: 71.0 against 80.5"),
    (retrieval, recalls(["EL-nivMF"], ["Margin"]), "EL-nivMF for Margin, the best loss on pairs, brings a gain",
     recalls(["Margin"], ["EL-nivMF"]), "brings a loss, against the paper"),
    (omega, recalls([RELEASED], [AT_ZERO, LARGE]), "highest at omega = 1, as the paper has it",
     recalls([AT_ZERO], [RELEASED, LARGE]), "highest at omega = 0, against the paper"),
    (omega, recalls([RELEASED], [LARGE, "ProxyAnchor"]), "beside ProxyAnchor brings a gain, as the paper has it",
     recalls([LARGE, "ProxyAnchor"], [RELEASED]), "beside ProxyAnchor brings a loss, against the paper"),
    (distances, recalls(["EL-nivMF"], ["Cosine"], ["nivMF"]), "EL-nivMF has the highest R@1 of 3 distances, as",
     recalls(["Cosine"], ["EL-nivMF"], ["nivMF"]), "here EL-nivMF is third: 71.0 against 80.5"),
    (distances, recalls(["EL-nivMF"], ["Cosine"], ["nivMF"]), "Reading the norm as well brings a gain, as the paper",
     recalls(["Cosine"], ["EL-nivMF"], ["nivMF"]), "Non-isotropy brings a loss, against the paper"),
    (distances, recalls(["L2"], ["L2;retrieval=euclidean"]), "lowers R@1 of 1 of 1 models, as the paper",
     recalls(["L2;retrieval=euclidean"], ["L2"]), "lowers R@1 of 0 of 1 models, against the paper"),
    (normalizer, measured("rms_relative_error", {"quadratic;dim=128": [0.2], "quadratic;dim=512": [0.01]}),
     "does not hold for M = 128, against the paper",
     measured("rms_relative_error", {"quadratic;dim=128": [0.02], "quadratic;dim=512": [0.01]}),
     "holds, as the paper has it"),
    (normalizer, measured("mean_cosine", SAMPLERS | {"released sampler;dim=512;kappa=50": [-0.4]}), "point away from",
     measured("mean_cosine", SAMPLERS | {"released sampler;dim=512;kappa=50": [0.1]}), "point towards"),
    (normalizer, measured("integral", dict.fromkeys(DENSITIES, (400.0,))), "is not a density: over the sphere",
     measured("integral", dict.fromkeys(DENSITIES, (1.0,))), "is a density: over the sphere"),
    (certainty, measured("norm_auroc", {"EL-nivMF": [0.60, 0.61], "Cosine": [0.65, 0.66]}),
     "predicts which images Cosine retrieves right, as the paper has it, but worse than the norm of Cosine",
     measured("norm_auroc", {"EL-nivMF": [0.60, 0.61], "Cosine": [0.55, 0.56]}),
     "as the paper has it, and better than the norm of Cosine"),
    (certainty, measured("norm_auroc", {"EL-nivMF": [0.60, 0.45], "Cosine": [0.5, 0.5]}),
     "does not clearly predict which images Cosine retrieves right, against the paper, not clearly better",
     measured("norm_auroc", {"EL-nivMF": [0.40, 0.45], "Cosine": [0.5, 0.5]}), "predicts the wrong way round"),
    (certainty, measured("norm_corruption_correlation",
                         {"EL-nivMF;corruption=blur": [-0.7, -0.8], "Cosine;corruption=blur": [-0.5, -0.6]}),
     "in 1 of 1 ways, as the paper has it, and clearly more than Cosine's in 1 of them",
     measured("norm_corruption_correlation",
              {"EL-nivMF;corruption=blur": [0.7, 0.8], "Cosine;corruption=blur": [-0.5, -0.6]}),
     "in 0 of 1 ways, against the paper, and clearly more than Cosine's in 0 of them"),
    (diversity, measured("class_diversity", {"Cosine": [2, 2], "EL-vMF": [1, 1], "EL-nivMF": [3, 3]}),
     "EL-vMF a fall, against the paper (-50, single seeds -50 and -50); EL-nivMF a rise, as the paper has it",
     measured("class_diversity", {"Cosine": [2, 2], "EL-vMF": [3, 3], "EL-nivMF": [1, 1]}),
     "EL-vMF a rise, as the paper has it (+50, single seeds +50 and +50); EL-nivMF a fall, against the paper"),
    (cost, measured("seconds_ratio", {"EL-nivMF;samples=5": [1.10, 1.11]}), "by 25 percent at most, as the paper",
     measured("seconds_ratio", {"EL-nivMF;samples=5": [1.30, 1.31]}), "by more than 25 percent, against the paper"),
    (cost, recalls(["EL-nivMF;samples=5", "EL-nivMF;samples=20"], []), "do alike, as the paper has it",
     recalls(["EL-nivMF;samples=20"], ["EL-nivMF;samples=5"]), "do not do alike, against the paper"),
    (cost, recalls(["EL-nivMF"], ["EL-nivMF;normalizer=none"]), "brings a severe loss, as the paper has it",
     recalls(["EL-nivMF;normalizer=none"], ["EL-nivMF"]), "brings a gain, against the paper"),
)  # fmt: skip


@pytest.mark.parametrize("module, rows, words, others, turned", TURNS)
def test_a_sentence_turns_with_its_numbers(module, rows, words, others, turned):
    before, after = (" ".join(said(module, each)) for each in (rows, others))
    assert words in before and turned in after
    assert words not in after and turned not in before


def test_the_fit_carries_where_it_errs_by_less_than_a_nat():
    def rows(error):
        errors = measured("error_at_400", dict.fromkeys(("quadratic;dim=128", "quadratic;dim=512"), (error,)))
        return errors | measured("slope_exceeds_1_at", {"quadratic;dim=128": [146.0], "quadratic;dim=512": [516.0]})

    assert "does not carry beyond, against the paper" in said(normalizer, rows(-2.0))[0]
    assert "The fit carries beyond, as the paper has it" in said(normalizer, rows(-0.5))[0]


def test_seeds_that_disagree_show_no_clear_difference():
    rows = {("EL-nivMF", "", "R@1"): [80.0, 81.0], ("ProxyNCA++", "", "R@1"): [79.0, 83.0]}
    assert "brings no clear difference, where the paper has a gain" in " ".join(said(retrieval, rows))
    rows = {("EL-nivMF", "", "R@1"): [80.0, 81.0], ("EL-nivMF", "normalizer=none", "R@1"): [79.0, 83.0]}
    assert "brings no clear difference, where the paper has a severe loss" in " ".join(said(cost, rows))


@pytest.mark.parametrize("module", [retrieval, omega, distances, normalizer, certainty, diversity, cost])
def test_nothing_is_said_without_its_rows(module):
    for method in ("Cosine", "EL-nivMF", JOINT):
        assert said(module, recalls([method], [])) == []
