"""The plan counts what would be trained, without any data set."""

import pytest

from dmlrepro import cli
from dmlrepro.papers import catalogue, plan
from dmlrepro.training import protocols
from dmlrepro.training.spec import RunSpec

R50 = RunSpec(
    "cub",
    backbone="resnet50.tv_in1k",
    embedding_size=512,
    image_size=224,
    loss="baselines.proxy_anchor",
    epochs=10,
    batch_size=100,
    method="ProxyAnchor",
)


@pytest.fixture(autouse=True)
def no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path / "absent"))


def test_hours_are_images_over_throughput():
    (row,) = plan.plan({"10": [R50]}).to_dict("records")
    # 58 steps of 100 images per epoch, and one look at the 5,924 test images at a third of the cost
    assert row["hours"] == pytest.approx((10 * 5800 + 5924 / 3) / 750 / 3600)
    assert (row["epochs"], row["device"], row["throughput"]) == (10, "gpu", "stated")
    (often,) = plan.plan({"10": [R50.replace(eval_every_epochs=1)]}).to_dict("records")
    assert often["hours"] == pytest.approx((10 * 5800 + 11 * 5924 / 3) / 750 / 3600)


def test_views_and_neighbours_are_counted():
    (row,) = plan.plan({"10": [R50.replace(views=2, neighbours=5)]}).to_dict("records")
    assert row["hours"] == pytest.approx((10 * 2 * 5800 + (5924 + 10 * 5864) / 3) / 750 / 3600)


def test_a_fold_trains_on_three_quarters_and_stops_early():
    spec = protocols.expand(R50.replace(dataset="sop"), "mlrc", published=True)[2]
    (row,) = plan.plan({"10": [spec]}).to_dict("records")
    train = round(59551 * (1 - 2830 / 11318))
    assert row["epochs"] == pytest.approx(78_000 / (train // 32), abs=0.05)
    held_out, test, evaluations = 59551 - train, 60502, 39
    images = 78_000 * 32 + (evaluations * held_out + 2 * (held_out + test)) / 3
    assert row["hours"] == pytest.approx(images * (227 / 224) ** 2 / 1200 / 3600)


def test_a_run_of_two_notebooks_costs_once():
    table = plan.plan({"10": [R50, R50.replace(seed=1)], "13": [R50.replace(setting="M=15")]})
    assert list(table["throughput"]) == ["stated", "stated", "shared"]
    assert table["hours"].iloc[2] == 0
    groups = plan.grouped(table)
    assert list(groups["runs"]) == [2, 1]
    assert groups["hours"].sum() == pytest.approx(table["hours"].sum())
    assert plan.totals(table) == ["3 runs, 2 of them distinct", f"total {table['hours'].sum():.3g} GPU hours"]


def test_memory_counts_parameters_activations_and_proxies():
    def gigabytes(**changes):
        return plan.plan({"": [R50.replace(**changes)]})["gigabytes"].iloc[0]

    parameters = (23_508_032 + 2048 * 512 + 100 * 512) * 16 / 1e9
    step = gigabytes(batch_size=200) - gigabytes(batch_size=100)
    assert gigabytes(batch_size=100) - step == pytest.approx(parameters, abs=0.02)
    assert 5 < step < 15  # a ResNet-50 at 224 pixels keeps 50 to 150 MB per image in float32
    many = gigabytes(loss="potential_field.PotentialFieldLoss", loss_options={"proxies_per_class": 1000})
    assert many - gigabytes() == pytest.approx((100_000 - 100) * 512 * 16 / 1e9, abs=0.02)


@pytest.mark.parametrize("profile", ["quick", "small", "paper"])
def test_every_notebook_is_planned_without_data(profile, capsys):
    assert cli.main(["plan", "--profile", profile]) == 0
    printed = capsys.readouterr().out
    assert "runs," in printed and "total " in printed
    for name, notebook in catalogue.notebooks().items():
        assert (name in printed) == bool(notebook.specs(notebook.params.from_values({"profile": profile})))


def test_the_search_is_counted_apart(capsys):
    assert cli.main(["plan", "10", "--profile", "paper", "-p", "protocol", "mlrc", "--each"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("PFML" in line and " mlrc " in line for line in lines) == 40  # 10 seeds, 4 folds
    assert "tuning these methods first" in lines[-1]


def test_the_plan_counts_the_proxies_of_the_dataset():
    def gigabytes(**values):
        table = plan.table_of(
            ["10"], lambda cls: cls.from_values({"profile": "paper", "methods": ["PFML"], "dataset": "sop"} | values)
        )
        return table["gigabytes"].iloc[0]

    assert gigabytes() == gigabytes(proxies_per_class=2)  # Sec. 4 of the paper
    assert gigabytes(proxies_per_class=15) - gigabytes() == pytest.approx(13 * 11318 * 512 * 16 / 1e9, abs=0.02)


def test_own_images_are_counted_as_they_lie(monkeypatch):
    class Manifest:
        num_train_classes = 3

        def indices(self, split):
            return range({"train": 1000, "test": 600}[split])

    monkeypatch.setattr(plan.manifests, "load", lambda name: Manifest())
    values = {"dataset": "folder:birds", "methods": ["untrained", "PFML"], "small_dim": 0, "mlrc_steps": 0, "seeds": 1}
    table = plan.table_of(["10"], lambda cls: cls.from_values(values))
    untrained, trained = table.to_dict("records")
    assert untrained["hours"] == pytest.approx(600 / 3 / 5500 / 3600)
    assert trained["epochs"] == 300 / 10
