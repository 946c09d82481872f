"""Notebook 17: what is counted, what is timed, and that its claim finds its rows."""

import math

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from experiments.analysis import judging
from experiments.analysis.comparing import Reason
from experiments.pfml import cost
from experiments.pfml.claims import TESTS

TINY = {"backbone": "conv4", "image_size": 16, "network_images": 2, "embedding_size": 8, "batch_size": 10}
TINY |= {"num_classes": 5, "numbers": [1, 5, 30], "class_counts": [5, 1000, 4000]}


def test_crowded_points_are_close_to_one_in_a_hundred_and_counts_are_those_of_a_loop():
    points = cost.crowd(torch.randn(2000, 64), torch.Generator().manual_seed(0))
    assert torch.allclose(points.norm(dim=1), torch.ones(2000))
    assert (F.pdist(points) < 0.2).float().mean().item() == pytest.approx(0.01, rel=0.1)
    params = cost.Cost.configured(TINY)
    table = cost.counts(params).set_index(["method", "setting", "metric"])["value"]
    step = cost._loss_step(params, "PFML", "M=5;points=crowded", torch.device("cpu"))
    points = F.normalize(torch.cat([step.loss.proxies.detach().flatten(0, 1), step.embeddings.detach()]), dim=1)
    labels = torch.cat([torch.arange(5).repeat_interleave(5), step.labels])
    pairs = [(i, j) for i in range(35) for j in range(i)]
    close = sum((points[i] - points[j]).norm() < 0.2 and labels[i] != labels[j] for i, j in pairs)
    key = ("PFML", "M=5;points=crowded")
    assert table[*key, "points"] == 35 and table[*key, "close_pairs"] == close
    assert table[*key, "pairs_of_a_class"] == sum(labels[i] == labels[j] for i, j in pairs)
    assert table["PFML", "M=30", "parameters"] == 5 * 30 * 8 and table["ProxyAnchor", "", "parameters"] == 5 * 8


def test_every_loss_is_measured_and_the_claim_finds_its_rows():
    params = cost.Cost.configured(TINY)
    costs = cost.measure(params)
    assert (costs[["seconds", "network_seconds", "megabytes", "network_megabytes"]] > 0).all(axis=None)
    assert costs.groupby(["method", "setting"]).size().eq(params.seeds).all()
    judged = judging.judge(cost.ratios(costs, params), TESTS, ["pfml-13"])
    assert judged.verdicts["verdict"].tolist() == ["not run"] and set(judged.comparisons["seeds"]) == {5}
    assert judged.verdicts["reason"].tolist() == [Reason.NETWORK]
    assert cost.published_curve()["Cars-196"][30] == pytest.approx(14.8 / 14.2)


def test_ratios_are_of_whole_steps_within_a_repetition():
    params = cost.Cost.configured(TINY)
    columns = ["method", "setting", "seed", "seconds", "network_seconds", "megabytes"]
    costs = pd.DataFrame(
        [
            ("ProxyNCA++", "", 0, 1.0, 9.0, 2.0),
            ("PFML", "M=30", 0, 3.0, 9.0, 8.0),
            ("PFML", "M=5", 0, 1.5, 9.0, 8.0),
            ("ProxyNCA++", "C=10", 0, 2.0, 9.0, 4.0),
            ("ProxyNCA++", "C=100", 0, 20.0, 9.0, 4.0),
            ("PFML", "C=10;M=2", 0, 4.0, 9.0, 8.0),
            ("PFML", "C=100;M=2", 0, 400.0, 9.0, 8.0),
        ],
        columns=columns,
    )
    value = cost.ratios(costs, params).set_index(["method", "setting", "metric"])["value"]
    assert value["PFML", "M=30", "seconds_ratio"] == pytest.approx(12 / 10)
    assert value["PFML", "M=30", "loss_seconds_ratio"] == 3
    assert value["PFML", "C=10;M=2", "loss_megabytes_ratio"] == 2
    assert ("PFML", "C=10;M=2", "loss_exponent") not in value.index  # there are no fewer classes
    assert value["PFML", "C=100;M=2", "loss_exponent"] == pytest.approx(2)  # 100 times for 10 times as many
    assert value["PFML", "M=30", "loss_exponent"] == pytest.approx(math.log(2) / math.log(6))
