"""Notebooks 11 to 17 of PFML: what is trained, what is measured, and that every claim finds its rows."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dmlrepro.evidence import claims, results
from dmlrepro.papers.pfml import ablations as pfml_studies
from dmlrepro.papers.pfml import cost as pfml_cost
from dmlrepro.papers.pfml import geometry as pfml_geometry
from dmlrepro.papers.pfml import methods as pfml
from dmlrepro.training import runs
from dmlrepro.training.builders import build_loss
from dmlrepro.training.spec import RunSpec

ABLATIONS = {
    "M=15": (pfml_studies.ProxiesParams, pfml_studies.ablation_proxies),
    "delta=0.2": (pfml_studies.DeltaParams, pfml_studies.ablation_delta),
    "alpha=3": (pfml_studies.AlphaParams, pfml_studies.ablation_alpha),
    "delta_rep=0.2": (pfml_studies.RepulsionParams, pfml_studies.ablation_repulsion_radius),
}


def content(specs) -> set[str]:
    return {json.dumps(spec.as_dict(), sort_keys=True) for spec in specs}


def as_if_finished(params_class, function, profile="quick", metric="R@1"):
    """A table as the notebook would have it, with R@1 = 50."""
    params = params_class.from_values({"profile": profile})
    common = {"paper": "pfml", "experiment": params.notebook, "profile": profile, "dataset": "glyphs", "metric": metric}
    return results.frame(
        common | {"method": spec.method, "setting": spec.setting, "seed": spec.seed, "value": 50.0}
        for spec in function(params)
    )


# --- what is trained


def test_clean_runs_are_those_of_notebook_10():
    ours = pfml_studies.label_noise(pfml_studies.LabelNoiseParams.from_values({}))
    clean = [spec for spec in ours if spec.label_noise == 0]
    aligned = pfml_studies.proxy_alignment(pfml_studies.AlignmentParams.from_values({}))
    theirs = content(pfml.retrieval(pfml.RetrievalParams.from_values({})))
    assert len(clean) == 10 and content(clean) <= theirs
    # SoftTriple has as many centres as PFML proxies; the settings are PFML with other gradients and batches
    shared = [spec for spec in aligned if spec.method != "SoftTriple" and not spec.setting]
    assert content(shared) <= theirs
    assert {spec.loss_options["centers_per_class"] for spec in aligned if spec.method == "SoftTriple"} == {15}


@pytest.mark.parametrize("profile", ["quick", "small", "paper"])
def test_gradients_are_clipped_for_the_proxies_of_pfml_and_for_cpml(profile):
    params = pfml_studies.AlignmentParams.from_values({"profile": profile, "seeds": 1})
    specs = {(spec.method, spec.setting): spec for spec in pfml_studies.proxy_alignment(params)}
    default, shuffled = specs["PFML", ""], specs["PFML", "batches=shuffled"]
    assert default.loss_clip_value == shuffled.loss_clip_value == pfml.CLIP_VALUE
    assert default.samples_per_class == (None if profile == "paper" else 4) and shuffled.samples_per_class is None
    assert specs["PFML", "gradients=unclipped"] == default.replace(loss_clip_value=None, setting="gradients=unclipped")
    both = "batches=shuffled;gradients=unclipped"
    assert specs["PFML", both] == shuffled.replace(loss_clip_value=None, setting=both)
    clipped = {
        method: (spec.clip_value, spec.loss_clip_value) for (method, setting), spec in specs.items() if not setting
    }
    assert clipped.pop("PFML") == (None, 0.01) and clipped.pop("CPML") == (0.01, None)
    assert set(clipped.values()) == {(None, None)}


@pytest.mark.parametrize("profile", ["quick", "small", "paper"])
def test_the_default_point_of_the_ablations_is_one_run(profile):
    points = []
    for setting, (params_class, function) in ABLATIONS.items():
        specs = function(params_class.from_values({"profile": profile, "samples_per_class": 4}))
        points.append(content(spec for spec in specs if spec.setting == setting))
    assert points[0] == points[1] == points[2] == points[3] != set()


@pytest.mark.parametrize(
    "claim_ids, entry",
    [
        (["pfml-04", "pfml-05"], (pfml_studies.LabelNoiseParams, pfml_studies.label_noise)),
        (["pfml-08", "pfml-09"], ABLATIONS["M=15"]),
        (["pfml-10"], ABLATIONS["delta=0.2"]),
        (["pfml-11"], ABLATIONS["alpha=3"]),
        (["pfml-12"], ABLATIONS["delta_rep=0.2"]),
    ],
)
@pytest.mark.parametrize("profile", ["quick", "paper"])
def test_every_claim_finds_its_rows(claim_ids, entry, profile):
    lines = claims.verdicts(as_if_finished(*entry, profile), claim_ids)
    assert (lines["verdict"] != "not run").all() and not lines["reason"].str.contains("covers").any()


def test_without_proxies_batches_have_several_images_of_a_class_for_every_number():
    for profile in ("quick", "small", "paper"):
        specs = pfml_studies.ablation_proxies(pfml_studies.ProxiesParams.from_values({"profile": profile}))
        assert {spec.samples_per_class for spec in specs if spec.method == "PFML"} == {4}


def test_small_trains_heads_on_pretrained_trunks_only():
    def frozen(**values):
        return {spec.freeze_trunk for spec in pfml_studies.ablation_delta(pfml_studies.DeltaParams.from_values(values))}

    assert frozen(profile="small") == {True, False}  # False: the untrained network
    assert frozen(profile="small", dataset="omniglot") == {False}
    assert frozen(profile="quick") == frozen(profile="paper") == {False}


def test_alpha_zero_is_run_as_a_logarithm_and_as_printed():
    specs = pfml_studies.ablation_alpha(pfml_studies.AlphaParams.from_values({}))
    points, labels = torch.randn(8, 16), torch.arange(8) % 2
    steepness = {}
    for spec in specs:
        if spec.setting in ("alpha=0", pfml_studies.LITERAL):
            embeddings = points.clone().requires_grad_()
            build_loss(spec, 2, 16)(embeddings, labels).backward()
            steepness[spec.setting] = embeddings.grad.norm().item()
    assert steepness["alpha=0"] > 0 and steepness[pfml_studies.LITERAL] == 0


# --- what is measured


def test_drops_stand_beside_the_printed_ones():
    table = as_if_finished(pfml_studies.LabelNoiseParams, pfml_studies.label_noise)
    table.loc[(table["method"] == "PFML") & (table["setting"] == "label_noise=0.2"), "value"] = 40
    drops = pfml_studies.noise_drops(table)
    assert drops["ours, glyphs", "drop"].to_dict()["PFML"] == 10
    assert drops["published, CUB-200-2011", "drop"]["PFML"] == 6.7  # 73.4 - 66.7
    assert drops["published, Cars-196", "drop"]["ProxyAnchor"] == 10.8
    assert math.isnan(drops["published, CUB-200-2011", "0"]["Triplet"])


def test_gradient_share_is_that_of_the_wrong_images(monkeypatch):
    labels = torch.arange(40) % 2
    manifest = type("Manifest", (), {"indices": lambda self, split: np.arange(40) + 7, "corrupted": np.array([7, 9])})()
    # d loss / d unit embedding: 3 along a fixed axis for class 0, where both wrong images are, and 1 for class 1
    weight = torch.tensor([3.0, 1.0])

    def loss(points, labels):
        return (points[:, 0] * weight[labels]).sum()

    monkeypatch.setattr(pfml_studies, "_trained", lambda run: (manifest, torch.randn(40, 3), labels, loss))
    spec = RunSpec(dataset="glyphs", steps=1, batch_size=40)  # a batch is everything: 2 of 20 in class 0
    run = type("Run", (), {"spec": spec})()
    assert pfml_studies.gradient_share(run) == pytest.approx(100 * 2 * 3 / (20 * 3 + 20 * 1), rel=1e-5)


def test_class_distances_against_a_loop():
    points, labels = torch.randn(12, 5, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    unit = F.normalize(points.double(), dim=1)
    within = []
    for c in range(3):
        own = [unit[i] for i in range(12) if labels[i] == c]
        within.append(np.mean([(own[i] - own[j]).norm() for i in range(4) for j in range(i)]))
    means = [unit[labels == c].mean(0) for c in range(3)]
    between = np.mean([(means[i] - means[j]).norm() for i in range(3) for j in range(i)])
    found = pfml_studies.class_distances(points, labels)
    assert found["intra_class_distance"] == pytest.approx(np.mean(within))
    assert found["class_mean_distance"] == pytest.approx(between)


def test_known_values_of_figure_3():
    curve = pfml_studies.published_curve("Fig. 3(d)")
    assert curve["CUB-200-2011"][0.45] == 66.6 and curve["Cars-196"][0.22] == 91.5 and len(curve["Cars-196"]) == 7
    assert pfml_studies.published_curve("Fig. 3(c)")["CUB-200-2011"] == {0.0: 68.2, 3.0: 73.4}
    table = as_if_finished(*ABLATIONS["alpha=3"])
    rows = pfml_studies.by_level(table, ["R@1"], "Fig. 3(c)")
    assert list(rows.index[:2]) == ["untrained", pfml_studies.LITERAL]
    assert rows.loc["alpha=3", "published, CUB-200-2011, R@1"] == 73.4
    assert math.isnan(rows.loc[pfml_studies.LITERAL, "published, CUB-200-2011, R@1"])


def test_alignment_of_a_finished_run():
    values = {"methods": ["PFML", "ProxyNCA++"], "steps": 2, "seeds": 1, "point_sets": 1, "proxies_per_class": 3}
    params = pfml_studies.AlignmentParams.from_values(values)
    finished = runs.run_all(pfml_studies.proxy_alignment(params))
    table = pfml_studies.alignment_table(finished, params)
    value = table.set_index(["method", "setting", "metric"])["value"]
    for method, proxies in (("PFML", 3), ("ProxyNCA++", 1)):
        assert finished[method != "PFML"].loss_state()["proxies"].numel() == 200 * proxies * 64
        assert value[method, "", "nearest sample"] <= value[method, "", "W2"] <= value[method, "", "true W2"] <= 2
    assert value["ProxyNCA++", "", "nearest sample"] == pytest.approx(value["ProxyNCA++", "", "W2"])  # one proxy
    assert value["PFML", "M=5", "W2/delta"] == pytest.approx(1, abs=1e-3)
    assert value["CPML", "M=1;case=a sample at the mean", "W2/delta"] == pytest.approx(0, abs=1e-3)
    summary = pfml_studies.clipping_summary(table, finished)
    assert list(summary.index) == ["as everywhere", *pfml_studies.CLIPPING]
    assert summary.loc["as everywhere", "W2"] == pytest.approx(value["PFML", "", "W2"], abs=1e-3)
    assert summary.loc["as everywhere", "R@1"] == pytest.approx(100 * finished[0].metric("R@1"), abs=1e-3)
    assert summary.notna().all(axis=None)
    assert list(pfml_studies.alignment_summary(table).index) == ["PFML", "ProxyNCA++"]
    numbers, bounds = pfml_studies.study_curves(table)["printed lower bound for CPML (26)"]
    assert bounds == [pfml_geometry.printed_bound(m) for m in numbers]
    line = claims.verdicts(table, ["pfml-07"]).iloc[0]
    assert line["verdict"] == "contradicted" and "CPML;M=1 vs 1" in line["reason"]  # the corollary fails with one proxy


def test_the_picture_points_downhill():
    shown = pfml_geometry.picture("PFML", cells=400)
    psi, force = shown["potentials"]["PFML, field of class 1"], shown["forces"]["PFML, field of class 1"]
    step = shown["x"][1] - shown["x"][0]
    slope_y, slope_x = np.gradient(psi, step)
    smooth = np.hypot(slope_x, slope_y) < 100  # away from the rims, where the force jumps
    cosine = -(force[..., 0] * slope_x + force[..., 1] * slope_y)[smooth]
    cosine /= np.maximum(np.linalg.norm(force, axis=-1) * np.hypot(slope_x, slope_y), 1e-9)[smooth]
    assert np.median(cosine) > 0.999 and (cosine > 0.9).mean() > 0.97


# --- cost

TINY = {
    "backbone": "conv4",
    "image_size": 16,
    "network_images": 2,
    "embedding_size": 8,
    "batch_size": 10,
    "num_classes": 5,
    "numbers": [1, 5, 30],
    "class_counts": [5, 10],
}


def test_crowded_points_are_close_to_one_in_a_hundred():
    points = pfml_cost.crowd(torch.randn(2000, 64), torch.Generator().manual_seed(0))
    assert torch.allclose(points.norm(dim=1), torch.ones(2000))
    assert (F.pdist(points) < 0.2).float().mean().item() == pytest.approx(0.01, rel=0.1)


def test_counts_against_a_loop():
    params = pfml_cost.CostParams.from_values(TINY)
    table = pfml_cost.counts(params).set_index(["method", "setting", "metric"])["value"]
    step = pfml_cost._LossStep(params, "PFML", "M=5;points=crowded", torch.device("cpu"))
    points = F.normalize(torch.cat([step.loss.proxies.detach().flatten(0, 1), step.embeddings.detach()]), dim=1)
    labels = torch.cat([torch.arange(5).repeat_interleave(5), step.labels])
    pairs = [(i, j) for i in range(35) for j in range(i)]
    close = sum((points[i] - points[j]).norm() < 0.2 and labels[i] != labels[j] for i, j in pairs)
    key = ("PFML", "M=5;points=crowded")
    assert table[*key, "points"] == 35 and table[*key, "close_pairs"] == close
    assert table[*key, "pairs_of_a_class"] == sum(labels[i] == labels[j] for i, j in pairs)
    assert table["PFML", "M=30", "parameters"] == 5 * 30 * 8 and table["ProxyAnchor", "", "parameters"] == 5 * 8


def test_every_loss_is_measured_and_the_claim_finds_its_rows():
    params = pfml_cost.CostParams.from_values(TINY)
    costs = pfml_cost.measure(params)
    assert (costs[["seconds", "network_seconds", "megabytes", "network_megabytes"]] > 0).all(axis=None)
    assert costs.groupby(["method", "setting"]).size().eq(params.seeds).all()
    line = claims.verdicts(pfml_cost.ratios(costs, params), ["pfml-13"]).iloc[0]
    assert line["verdict"] != "not run" and line["n"] == 5
    ours = pfml_cost.beside_table_9(costs, params)
    assert ours.loc[("PFML", "M=30"), "published"] == pytest.approx(14.8 / 14.2)
    assert set(pfml_cost.class_curves(costs, "seconds")) == {"PFML", "ProxyNCA++", "ProxyAnchor"}


def test_ratios_are_of_whole_steps_within_a_repetition():
    params = pfml_cost.CostParams.from_values(TINY)
    import pandas as pd

    columns = ["method", "setting", "seed", "seconds", "network_seconds", "megabytes"]
    costs = pd.DataFrame(
        [
            ("ProxyNCA++", "", 0, 1.0, 9.0, 2.0),
            ("PFML", "M=30", 0, 3.0, 9.0, 8.0),
            ("ProxyNCA++", "C=10", 0, 2.0, 9.0, 4.0),
            ("ProxyNCA++", "C=100", 0, 20.0, 9.0, 4.0),
            ("PFML", "C=10;M=2", 0, 4.0, 9.0, 8.0),
        ],
        columns=columns,
    )
    value = pfml_cost.ratios(costs, params).set_index(["method", "setting", "metric"])["value"]
    assert value["PFML", "M=30", "seconds_ratio"] == pytest.approx(12 / 10)
    assert value["PFML", "M=30", "loss_seconds_ratio"] == 3
    assert value["PFML", "C=10;M=2", "loss_megabytes_ratio"] == 2
    growth = pfml_cost.exponents(costs[costs["method"] == "ProxyNCA++"])
    assert growth.loc["ProxyNCA++", "time of the loss"] == pytest.approx(1)
    assert growth.loc["ProxyNCA++", "peak memory of the loss"] == pytest.approx(0)
