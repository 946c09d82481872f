"""The golden numbers must catch a broken loss and a broken metric: both are broken here on purpose."""

import pandas as pd
import pytest
import torch

from dmlrepro import retrieval
from dmlrepro.evidence import results
from dmlrepro.losses import baselines
from dmlrepro.papers.methods import BASELINES, spec_of
from dmlrepro.papers.pfml.retrieval import PfmlRetrievalParams
from dmlrepro.training import loop

PARAMS = PfmlRetrievalParams.from_values({"profile": "quick", "seeds": 1})
METHOD = "ProxyNCA++"


@pytest.fixture(scope="module")
def golden():
    table = pd.read_csv(results.golden_path(PARAMS), keep_default_na=False)
    return table[(table["method"] == METHOD) & (table["setting"] == "") & (table["protocol"] == "conventional")]


def trained_table() -> pd.DataFrame:
    outcome = loop.train(spec_of(BASELINES[METHOD], PARAMS))
    return results.frame(
        {"paper": "pfml", "experiment": "x", "profile": "quick", "dataset": "glyphs", "protocol": "conventional"}
        | row
        | {"method": METHOD, "value": 100 * row["value"]}
        for row in outcome.rows
        if row["metric"] in ("R@1", "MAP@R")
    )


def test_the_golden_file_knows_the_method(golden):
    assert set(golden["metric"]) == {"R@1", "MAP@R"}
    assert (golden["tolerance"] < 5).all()


def test_a_loss_with_a_flipped_sign_is_far_outside_the_tolerance(golden, monkeypatch):
    build = baselines.proxy_nca_pp

    def flipped(num_classes, embedding_size):
        loss = build(num_classes, embedding_size)
        forward = loss.forward
        loss.forward = lambda *inputs: -forward(*inputs)
        return loss

    monkeypatch.setattr(baselines, "proxy_nca_pp", flipped)
    assert set(results.compare_golden(trained_table(), golden)["metric"]) == {"R@1", "MAP@R"}


def test_a_metric_with_shuffled_labels_is_far_outside_the_tolerance(golden, monkeypatch):
    score = retrieval.retrieval

    def shuffled(embeddings, labels, *args, **kwargs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        return score(embeddings, labels[order], *args, **kwargs)

    monkeypatch.setattr(retrieval, "retrieval", shuffled)
    assert set(results.compare_golden(trained_table(), golden)["metric"]) == {"R@1", "MAP@R"}
