"""Each claim finds its rows in a table of the runs that its notebook plans."""

import pandas as pd
import pytest

from experiments.analysis import judging, results
from experiments.analysis.comparing import Reason
from experiments.report import catalogue

# cells that a table adds to those of its runs, by notebook
ADDED = {"22_nivmf_distances": ["retrieval=euclidean"]}
# whose rows are measured or computed, not scores of the runs; tests of their notebooks find them
MEASURED = {
    "meanfield-15",
    *("pfml-07", "pfml-13", "nivmf-09", "nivmf-14", "nivmf-15", "ccp-09", "ccp-14", "ccp-15", "plm-03", "plm-04"),
    "meanfield-14",
}
NOTEBOOKS = dict.fromkeys(test.notebook for name, test in catalogue.claims().items() if name not in MEASURED)


def as_if_finished(study, profile, metrics, extra=()):
    """The rows of a notebook's runs, every value 50; the models that a protocol trains on folds are one row. extra:
    further settings of the runs that have none."""
    params = study.configured({"profile": profile})
    specs = study.specs_untrained(params)
    first = min((spec.fold for spec in specs if spec.fold is not None), default=None)
    common = {"paper": params.paper, "experiment": params.notebook, "profile": profile, "dataset": "glyphs"}
    return results.frame(
        common
        | {"backbone": spec.backbone, "dim": spec.embedding_size or 0, "protocol": spec.protocol, "seed": spec.seed}
        | {"method": spec.method, "setting": setting, "metric": metric, "value": 50.0}
        for spec in specs
        if spec.fold in (None, first)
        for setting in (spec.setting, *(extra if not spec.setting else ()))
        for metric in metrics
    )


@pytest.mark.parametrize("profile", ["small", "paper"])
@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_each_claim_about_scores_finds_its_rows(notebook, profile):
    tests = {name: test for name, test in catalogue.claims().items() if test.notebook == notebook}
    metrics = {part.metric for test in tests.values() for part in test.parts}
    table = as_if_finished(catalogue.find(notebook), profile, metrics, ADDED.get(notebook, ()))
    if notebook.startswith("33_"):  # whose table compares dimensions in one context
        table = table.assign(dim=table["dim"].where(table["dim"] == 0, 64))
    if notebook.startswith("34_"):  # whose table adds the best beta of each delta
        best = table[table["setting"] == "beta=80;delta=0.8"]
        table = pd.concat([table, *(best.assign(setting=f"delta={delta}") for delta in (0.6, 1))])
    lines = judging.judge(table, tests, list(tests)).verdicts
    missing = lines.loc[lines["reason"].isin([Reason.ROWS, Reason.RANGE]), "claim_id"]
    assert set(lines["claim_id"]) == set(tests)
    assert set(missing) <= MEASURED | ({"pfml-15"} if profile == "paper" else set())  # there of protocol mlrc
