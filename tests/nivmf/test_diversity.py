"""Notebook 25: diversity relative to the cosine model."""

from experiments.analysis import results
from experiments.nivmf import diversity


def test_relative_diversity_is_the_change_against_cosine_and_stands_beside_the_papers():
    common = {
        "paper": "nivmf",
        "experiment": "25",
        "profile": "quick",
        "dataset": "glyphs",
        "metric": "class_diversity",
    }
    values = {("Cosine", 0): 1.0, ("Cosine", 1): 2.0, ("EL-vMF", 0): 1.1, ("EL-vMF", 1): 2.6}
    rows = [common | {"method": m, "seed": s, "value": v, "setting": ""} for (m, s), v in values.items()]
    table = diversity.relative_diversity(results.frame(rows))
    row = table.loc["class_diversity, train images"]
    assert row["ours, glyphs: EL-vMF"] == 20.0
    assert row["published, Cars-196: EL-vMF"] == 24
    assert row["published, CUB-200-2011: EL-nivMF"] == 25
