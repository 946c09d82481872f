"""Notebooks 10 to 17: what they train at each profile, what a search decides, what is measured, counted and timed; at
the profile paper PFML has Table 8's settings, as the table beside this file has them."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from planned import planned
from scipy.spatial.distance import pdist

from experiments.analysis import judging
from experiments.analysis.comparing import Reason
from experiments.pfml import alignment, cost, label_noise, retrieval
from experiments.pfml.claims import TESTS
from experiments.pfml.methods import DINO, VIT
from experiments.report import show
from experiments.training import runs
from experiments.training.spec import RunSpec

TABLE_8 = pd.read_csv(Path(__file__).with_name("table_8.csv"), dtype=str).to_dict("records")


@pytest.mark.parametrize("row", TABLE_8, ids=lambda row: f"{row['dataset']}-{row['backbone']}")
def test_a_run_has_the_settings_of_its_column(row):
    params, specs = planned("10", "paper", dataset=row["dataset"], backbone=row["backbone"])
    for spec in (spec for spec in specs if spec.loss and not spec.setting):
        assert (spec.epochs, spec.optimizer, spec.embedding_size) == (200, "adam", int(row["dim"]))
        assert (spec.lr, spec.weight_decay) == (float(row["lr"]), float(row["weight_decay"]))
        assert (spec.batch_size, spec.warmup_epochs) == (int(row["batch"]), float(row["warmup_epochs"]))
        assert spec.freeze_batchnorm == (row["batchnorm_frozen"] == "yes")
    spec = next(spec for spec in specs if spec.method == "PFML")
    assert dict(spec.loss_lr) == {"proxies": float(row["proxy_lr"])}
    assert spec.loss_options == {"proxies_per_class": int(row["proxies"]), "alpha": 3.0, "delta": 0.2}
    shown = {name: source for name, *_, source in show.settings(retrieval.Retrieval, spec, params)}
    assert ("IBN/512" if row["backbone"] == "bn_inception" else "R50/512") in shown["batch_size"]


@pytest.mark.parametrize("backbone", [VIT, DINO])
@pytest.mark.parametrize("dataset", ["cub", "cars", "sop"])
def test_a_transformer_has_384_dimensions_and_says_whose_settings_it_takes(backbone, dataset):
    params, specs = planned("10", "paper", dataset=dataset, backbone=backbone)
    spec = next(spec for spec in specs if spec.method == "PFML" and not spec.setting)
    assert (spec.embedding_size, spec.batch_size, spec.pooling, spec.image_size) == (384, 100, "token", 224)
    shown = {name: source for name, *_, source in show.settings(retrieval.Retrieval, spec, params)}
    assert "none for transformers" in shown["batch_size"]


def found_by_search(**options):
    """As `methods.search_each`, which found these options for every loss."""

    def search_each(specs, records, params):
        return [spec.replace(loss_options={**spec.loss_options, **options}) for spec in specs]

    return search_each


def test_what_a_search_finds_on_right_labels_is_trained_on_wrong_ones_in_one_network_per_seed(monkeypatch):
    monkeypatch.setattr(label_noise, "search_each", found_by_search(margin=0.7))
    params = label_noise.LabelNoise.configured({"methods": ["Triplet"], "seeds": 1})
    specs = label_noise.label_noise(params)
    assert [(spec.label_noise, spec.loss_options["margin"]) for spec in specs] == [(0, 0.7), (0.2, 0.7), (0.4, 0.7)]
    for protocol in ("mlrc", "ccp_one_fold"):
        with pytest.raises(ValueError, match=f"'{protocol}' holds some out; choose one of conventional, roth, stml$"):
            label_noise.LabelNoise.configured({"protocol": protocol})


def test_gradient_share_is_that_of_the_wrong_images(monkeypatch):
    labels = torch.arange(40) % 2
    manifest = type("Manifest", (), {"indices": lambda self, split: np.arange(40) + 7, "corrupted": np.array([7, 9])})()
    # d loss / d unit embedding: 3 along a fixed axis for class 0, where both wrong images are, and 1 for class 1
    weight = torch.tensor([3.0, 1.0])

    def loss(points, labels):
        return (points[:, 0] * weight[labels]).sum()

    monkeypatch.setattr(label_noise.studies, "training_embeddings", lambda run: (manifest, torch.randn(40, 3), labels))
    monkeypatch.setattr(label_noise.studies, "trained_loss", lambda run, manifest, dim: loss)
    spec = RunSpec(dataset="glyphs", steps=1, batch_size=40)  # a batch is everything: 2 of 20 in class 0
    run = type("Run", (), {"spec": spec})()
    share = label_noise.gradient_share(run)["gradient_share"]
    assert share == pytest.approx(100 * 2 * 3 / (20 * 3 + 20 * 1), rel=1e-5)


def test_what_a_search_finds_holds_for_every_way_of_pfml(monkeypatch):
    monkeypatch.setattr(alignment, "search_each", found_by_search(alpha=5.0))
    specs = alignment.proxy_alignment(alignment.Alignment.configured({"methods": ["PFML"], "seeds": 1}))
    assert [spec.setting for spec in specs] == ["", *alignment.OTHERWISE]
    assert {spec.loss_options["alpha"] for spec in specs} == {5.0}
    drawn = [spec for spec in specs if "proxy_norm" in spec.loss_options]
    assert {spec.setting.partition(";")[0] for spec in drawn} == {"proxies=as drawn"}


def test_class_distances_are_those_of_scipy():
    points, labels = torch.randn(12, 5, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    classes = [F.normalize(points.double(), dim=1)[labels == c] for c in range(3)]
    distances = alignment.class_distances(points, labels)
    assert distances["intra_class_distance"] == pytest.approx(np.mean([pdist(own) for own in classes]))
    assert distances["class_mean_distance"] == pytest.approx(pdist([own.mean(0).numpy() for own in classes]).mean())


def test_alignment_of_a_finished_run():
    values = {"steps": 2, "seeds": 1, "point_sets": 1, "proxies_per_class": 3}
    params = alignment.Alignment.configured(values | {"methods": ["untrained", "PFML", "ProxyNCA++"]})
    finished = runs.run_all(alignment.proxy_alignment(params), jobs=1)
    table = alignment.alignment_table(finished, params)
    value = table.set_index(["method", "setting", "metric"])["value"]
    for method, proxies in (("PFML", 3), ("ProxyNCA++", 1)):
        (run,) = (run for run in finished if (run.spec.method, run.spec.setting) == (method, ""))
        assert run.loss_state()["proxies"].numel() == 200 * proxies * 64
        assert value[method, "", "nearest sample"] <= value[method, "", "W2"] <= value[method, "", "true W2"] <= 2
    assert value["ProxyNCA++", "", "nearest sample"] == pytest.approx(value["ProxyNCA++", "", "W2"])  # one proxy
    assert value["PFML", "M=5", "W2/delta"] == pytest.approx(1, abs=1e-3)
    assert value["CPML", "M=1;case=a sample at the mean", "W2/delta"] == pytest.approx(0, abs=1e-3)
    assert set(value["PFML", :, "W2"].index) == {"", *alignment.OTHERWISE}


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
    assert (costs[["seconds", "network_seconds", "megabytes"]] > 0).all(axis=None)
    assert costs.groupby(["method", "setting"]).size().eq(params.seeds).all()
    judged = judging.judge(cost.ratios(costs, params), TESTS, ["pfml-13"])
    assert judged.verdicts["verdict"].tolist() == ["not run"] and set(judged.comparisons["seeds"]) == {5}
    assert judged.verdicts["reason"].tolist() == [Reason.NETWORK]
    assert cost.published_curve()["Cars-196"][30] == pytest.approx(14.8 / 14.2)


def test_ratios_are_of_whole_steps_within_a_repetition():
    params = cost.Cost.configured(TINY | {"class_counts": [10, 100]})
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
