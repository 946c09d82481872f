"""Notebooks 40 to 48: what they train, that their claims find their rows, what is measured on finished runs."""

import math

import pandas as pd
import pytest
import torch
from made_for_claims import rows
from planned import planned

from experiments import timing
from experiments.ccp import ablations, cost, geometry, methods, retrieval
from experiments.training import runs

PARTS = ["seconds", "network_seconds"]
TINY = {"steps": 6, "eval_every": 1, "seeds": 1, "problem_patience": 1, "batch_size": 16, "proxies_per_class": 2}


@pytest.mark.parametrize(("dataset", "proxies", "pool", "every"), [("cub", 8, 12, 25), ("sop", 4, 7, 250)])
def test_at_the_profile_paper_ccp_has_its_published_settings(dataset, proxies, pool, every):
    """Those that are no settings of a method, which tests/test_methods.py compares."""
    specs = {s.method: s for s in planned("41", profile="paper", dataset=dataset, seeds=1)[1] if s.fold in (0, None)}
    spec, options = specs["MS-CCP-L"], specs["MS-CCP-L"].algorithm_options
    assert (options["proxies_per_class"], options["pool_size"], options["projection"]) == (proxies, pool, 2e-4)
    assert (options["problem_patience"], options["batch_weight"]) == (3, 0.0)
    assert (spec.samples_per_class, spec.eval_every, spec.patience, spec.folds) == (4, every, 60, 4)
    assert specs["C2-CCP-S"].algorithm_options["proxies_per_class"] == specs["ProxyAnchor"].samples_per_class == 1
    memory = specs["C1-XBM-L"].loss_options
    assert (memory["memory_size"], memory["warmup_steps"]) == ({"cub": 25, "sop": 1400}[dataset] * 32, 1000)


def test_finished_runs_are_measured(shared_cache):
    ends = {"problem_patience": 0, "problem_steps": 2}
    params = ablations.Alternating.configured(TINY | ends | {"losses": ("C2",), "over": (), "pool_size": 4})
    finished = runs.run_all(ablations.alternating(params), jobs=1)
    table = ablations.Alternating.table(finished, params)
    values = table[table["selection"] == "last"].set_index(["method", "setting", "metric"])["value"]
    assert values["C2", "", "steps"] == values["C2-CCP-L", "", "steps"] == 6
    assert values["C2-Proxy", "", "problems"] == 1
    run = next(run for run in finished if (run.spec.method, run.spec.setting) == ("C2-CCP-L", ""))
    assert values["C2-CCP-L", "", "problems"] == 3
    measures = geometry.around_proxies(run)
    assert 0 < measures["covering_radius"] <= 2 and 0 <= measures["proxy_spread"] <= 2
    chosen = table[(table["selection"] == "val_best") & (table["metric"] == "MAP@R")]
    assert len(chosen) == len(finished) - 2  # one model per seed, its best validation; what is not trained has none


def test_the_radius_around_proxies_is_the_farthest_images_and_proxies_spread_in_pairs(monkeypatch):
    images = [torch.tensor([[0.0, 0.0], [0.6, 0.0]]), torch.tensor([[0.0, 1.0]])]
    proxies = torch.tensor([[[0.0, 0.0], [0.0, 0.8]], [[0.0, 1.0], [0.0, 1.0]]])
    monkeypatch.setattr(geometry, "_by_class", lambda run: (images, proxies))
    measures = geometry.around_proxies(None)
    assert measures == pytest.approx({"covering_radius": (0.6 + 0) / 2, "proxy_spread": (0.8 + 0) / 2})


def test_the_geometry_of_two_classes():
    points = torch.tensor([[0.0, 0.0], [0.6, 0.0], [0.0, 3.0], [0.0, 5.0]])  # the last two are one point, clipped
    measures = geometry.geometry(points, torch.tensor([0, 0, 1, 1]))
    assert measures["average_covering_radius"] == pytest.approx((0.6 + 0) / 2 / 2)
    assert measures["inter_class_distance"] == pytest.approx((1 + math.hypot(0.6, 1)) / 2, rel=1e-6)


def test_the_weighted_gap_is_below_the_radius_and_the_printed_constant_of_lemma_1_is_not():
    rows = list(geometry.bound_rows(10))
    assert all(row["value"] <= 1 for row in rows if row["metric"] == "gap/radius")
    radii = dict.fromkeys((f"chosen={choice}" for choice in geometry.CHOICES), 0.0)
    for row in rows:
        radii[row["setting"]] += row["value"] if row["metric"] == "covering_radius" else 0
    assert radii["chosen=k-center"] < radii["chosen=random"] < radii["chosen=duplicates"]
    points = torch.tensor([[[0.0], [1.0]], [[5.0], [5.0]]], dtype=torch.float64)
    gaps = geometry.gaps(points, torch.tensor([[0], [0]]))
    assert gaps["covering_radius"] == 1 and gaps["loss_gap"] == pytest.approx(0.0)  # both see what the other sees
    constants = {}
    for row in geometry.lemma_rows(5):
        constants.setdefault(row["setting"], []).append(row["value"])
    assert max(constants["constant=printed"]) > 1 >= max(constants["constant=rows and columns"])


def test_the_cost_of_a_step_is_that_of_its_parts():
    values = {"backbone": "conv4", "image_size": 32, "class_counts": (10, 20), "seeds": 2, "network_images": 2}
    params = cost.Cost.configured(values)
    costs = cost.measure(params)
    assert len(costs) == 2 * 2 * 2
    table = cost.ratios(costs, params)
    assert set(table["metric"]) == {"time_ratio", "step_ratio", "loss_ratio"} and (table["value"] > 0).all()
    plain, ours = (costs[(costs["method"] == name) & (costs["seed"] == 0)].iloc[0] for name in ("C2", "C2-CCP-L"))
    assert plain["penalty_seconds"] == plain["problem_seconds"] == 0 < min(ours[["penalty_seconds", "problem_seconds"]])
    expected = (ours["seconds"] + ours["penalty_seconds"] + ours["network_seconds"]) / (
        plain["seconds"] + plain["network_seconds"]
    )
    row = table[(table["metric"] == "step_ratio") & (table["seed"] == 0) & (table["setting"] == "C=10")]
    assert row["value"].item() == pytest.approx(expected)
    alone = (ours["seconds"] + ours["penalty_seconds"] + ours["problem_seconds"]) / plain["seconds"]
    row = table[(table["metric"] == "loss_ratio") & (table["seed"] == 0) & (table["setting"] == "C=10")]
    assert row["value"].item() == pytest.approx(alone)
    counted = cost.counts(params).set_index(["setting", "metric"])["value"]
    assert counted["C=20", "proxy_megabytes"] == pytest.approx(20 * 4 * 128 * 4 / 1e6)


def test_a_step_bears_its_share_of_the_pool_and_of_the_search(monkeypatch):
    calls = {("penalty", ""): 0.5, ("forward", ""): 3.0}
    calls |= {("C2", "C=10"): 1.0, ("C2-CCP-L", "C=10"): 2.0, ("search", "C=10"): 6.0}
    seconds = pd.DataFrame([(*call, 0, value, 0.25) for call, value in calls.items()], columns=[*timing.RUN, *PARTS])
    monkeypatch.setattr(timing, "steps", lambda *_: seconds.set_index(timing.RUN))
    values = {"backbone": "conv4", "image_size": 32, "class_counts": (10,), "seeds": 1, "network_images": 2}
    costs = cost.measure(cost.Cost.configured(values | {"pool_size": 7, "problem_steps": 100}))
    ours = costs[costs["method"] == "C2-CCP-L"].iloc[0]
    assert ours["problem_seconds"] == pytest.approx((10 * 7 / 2 * 3.0 + 6.0) / 100)
    assert (ours["seconds"], ours["penalty_seconds"], ours["network_seconds"]) == (2.0, 0.5, 0.25)


def test_problems_of_several_lengths_end_with_the_run():
    for values, lengths in (
        ({}, [10, 30, 60]),
        ({"steps": 20}, [10, 20]),  # as many steps as the run has are a single problem
        ({"losses": ["C1"]}, []),
        ({"profile": "paper"}, []),
    ):
        varied = [spec for spec in planned("44", **values)[1] if spec.setting.startswith("problem_steps=")]
        assert sorted({spec.algorithm_options["problem_steps"] for spec in varied}) == lengths
        assert {spec.method for spec in varied} == ({"C2-CCP-L", "MS-CCP-L"} if lengths else set())


def test_the_gains_of_ccp_are_paired_by_seed():
    names = [f"{loss}{form}" for loss in methods.LOSSES for form in ("", "-CCP-L")]
    values = {name: [10.0 * seed + (seed + 1) * name.endswith("-L") for seed in range(3)] for name in names}
    table = pd.DataFrame(row for name in names for row in rows(name, values[name], metric="MAP@R"))
    (axis,) = retrieval.gains(table).axes
    means = [dot.get_offsets()[0, 0] for dot in axis.collections]
    assert means == pytest.approx([2.0] * len(methods.LOSSES))  # of 1, 2 and 3: the seeds' own level counts nothing
    assert axis.lines[0].get_xdata() == pytest.approx([2 - 2.484, 2 + 2.484], abs=1e-3)
