"""What runs are said to cost: runs on record times their median seconds, or images over one throughput."""

import math

import pandas as pd
import pytest

from experiments.files import repository_root
from experiments.report import catalogue, costs
from experiments.training.spec import RunSpec

R50 = RunSpec("cub", embedding_size=512, loss="baselines.proxy_anchor", epochs=10, batch_size=100, image_size=224)


def test_runs_at_small_take_the_median_seconds_of_their_method_on_record():
    study = catalogue.find("16")
    params = study.configured({"profile": "small"})
    specs, hours = costs.of(study, params)
    record = pd.read_csv(repository_root() / "results" / "small" / f"{study.name}.cost.csv")
    medians = {method: rows["seconds"].median() for method, rows in record.groupby("method")}
    assert {spec.method for spec in specs} == set(medians)
    assert hours == pytest.approx(sum(medians[spec.method] for spec in specs) / 3600) and hours > 0.1
    half, less = costs.of(study, params, {costs.identity(spec) for spec in specs[::2]})
    assert half == specs[1::2] and less < hours
    without = catalogue.find("39")
    assert math.isnan(costs.of(without, without.configured({"profile": "small"}))[1])


@pytest.mark.parametrize(
    ("changes", "images"),
    [
        ({}, 580 * 100 + 5924 / 3),  # one look at the test images, which pass forward only
        ({"eval_every_epochs": 1}, 580 * 100 + 10 * 5924 / 3),
        ({"views": 2}, 2 * 580 * 100 + 5924 / 3),
        ({"image_size": 112}, (580 * 100 + 5924 / 3) / 4),
        ({"patience": 5, "epochs": None, "steps": 200_000, "eval_every": 200}, 1e6 + 50 * 5924 / 3),
        ({"loss": None}, 5924 / 3),
    ],
)
def test_at_the_papers_scale_images_are_counted(changes, images):
    assert costs._stated_seconds(R50.replace(**changes)) * costs.IMAGES_PER_SECOND == pytest.approx(images)


def test_shared_runs_count_once_and_every_notebook_has_a_row():
    table = costs.table()
    usual = table[table["default"]].pivot(index="notebook", columns="profile", values="hours")
    assert set(usual.index) == set(catalogue.studies())
    for number in ("10", "12"):  # 03 has runs of 10, and 10 has runs of 12
        study = catalogue.find(number)
        assert usual.loc[study.name, "paper"] < costs.of(study, study.configured({"profile": "paper"}))[1]
