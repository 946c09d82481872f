"""The plan counts what would be trained, without any data set."""

import pytest
import torch

from experiments import cli
from experiments.report import catalogue, plan, searches, stopwatch, throughput, work
from experiments.training import protocols, records, runs, search
from experiments.training.spec import RunSpec

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


def gpu_hours(images, steps, compared, *, per_second=750, batch=100, proxies=100, dim=512):
    """Images, each step's three products of the batch with the proxies, and the products of all ranked pairs."""
    return (images / per_second + (6 * steps * batch * proxies * dim + 2 * compared * dim) / 1e13) / 3600


def test_hours_are_images_over_throughput():
    (row,) = plan.plan({"10": [R50]}).to_dict("records")
    # 58 steps of 100 images per epoch, and one look at the 5,924 test images at a third of the cost
    assert row["hours"] == pytest.approx(gpu_hours(10 * 5800 + 5924 / 3, 580, 5924**2))
    assert (row["epochs"], row["device"], row["throughput"]) == (10, "gpu", "stated")
    (often,) = plan.plan({"10": [R50.replace(eval_every_epochs=1)]}).to_dict("records")
    assert often["hours"] == pytest.approx(gpu_hours(10 * 5800 + 10 * 5924 / 3, 580, 10 * 5924**2))  # the last is one
    (half,) = plan.plan({"10": [R50.replace(precision="bfloat16")]}).to_dict("records")
    assert half["hours"] == pytest.approx(
        gpu_hours(5 * 5800 + 5924 / 3, 580, 5924**2)
    )  # published scores are float32's


@pytest.mark.parametrize(("amx", "factor"), [(True, 1.6), (False, 1.0)])
def test_bfloat16_pays_on_a_cpu_with_matrix_units_only(monkeypatch, amx, factor):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    full, half = (
        throughput.stated(RunSpec("cub", backbone="squeezenet1_1", precision=p)) for p in ("float32", "bfloat16")
    )
    assert (half.images, half.evaluated) == (factor * full.images, 3 * full.images)


def test_views_and_neighbours_are_counted():
    (row,) = plan.plan({"10": [R50.replace(views=2, neighbours=5)]}).to_dict("records")
    images = 10 * 2 * 5800 + (5924 + 10 * 5864) / 3
    assert row["hours"] == pytest.approx(gpu_hours(images, 580, 5924**2 + 10 * 5864**2))


def test_a_tail_costs_its_share_of_the_network_and_its_views_once():
    share, kept = work._tail("resnet50.tv_in1k", "layer4.0", 224)
    assert 0.15 < share < 0.25 and 0 < kept < 0.1  # 0.8 of 4.1 billion multiplications
    earlier, _ = work._tail("resnet50.tv_in1k", "layer3.0", 224)
    assert share < earlier < 1
    whole, tail, head = plan.plan(
        {"10": [R50, R50.replace(train_from="layer4.0", cached_views=2), R50.replace(train_from="head")]}
    ).to_dict("records")
    images = share * 10 * 5800 + (share * 5924 + 2 * 5864 + 5924) / 3
    assert tail["hours"] == pytest.approx(gpu_hours(images, 580, 5924**2), rel=1e-3)
    assert head["hours"] == pytest.approx(gpu_hours((5864 + 5924) / 3, 580, 5924**2))
    assert head["gigabytes"] < tail["gigabytes"] < whole["gigabytes"]


def test_a_fold_trains_on_three_quarters_and_stops_early():
    spec = protocols.expand(R50.replace(dataset="sop"), "mlrc", published=True)[2]
    (row,) = plan.plan({"10": [spec]}).to_dict("records")
    train = round(59551 * (1 - 2830 / 11318))
    assert row["epochs"] == pytest.approx(78_000 / (train // 32), abs=0.05)
    held_out, test, evaluations = 59551 - train, 60502, 39
    images = 78_000 * 32 + (evaluations * held_out + 2 * (held_out + test)) / 3
    pairs = (evaluations + 2) * held_out**2 + 2 * test**2
    how = {"per_second": 1200, "batch": 32, "proxies": 11318, "dim": 128}
    assert row["hours"] == pytest.approx(gpu_hours(images * (227 / 224) ** 2, 78_000, pairs, **how))


def test_a_run_of_two_notebooks_costs_once():
    table = plan.plan({"10": [R50, R50.replace(seed=1)], "13": [R50.replace(setting="M=15")]})
    assert list(table["throughput"]) == ["stated", "stated", "shared"]
    assert table["hours"].iloc[2] == 0
    groups = plan.grouped(table)
    assert list(groups["runs"]) == [2, 1]
    assert groups["hours"].sum() == pytest.approx(table["hours"].sum())
    total = table["hours"].sum()
    assert plan.totals(table) == ["3 runs, 2 of them distinct", f"total {total:.3g} GPU hours"]
    assert plan.totals(table, 4)[-1] == f"on 4 GPUs at least {total / 4:.3g} hours"


def test_memory_counts_parameters_activations_and_proxies():
    def gigabytes(**changes):
        return plan.plan({"": [R50.replace(**changes)]})["gigabytes"].iloc[0]

    parameters = (23_508_032 + 2048 * 512 + 100 * 512) * 16 / 1e9
    step = gigabytes(batch_size=200) - gigabytes(batch_size=100)
    assert gigabytes(batch_size=100) - step == pytest.approx(parameters, abs=0.02)
    shared = plan.plan({"": [R50.replace(batch_size=200)]}, gpus=2)["gigabytes"].iloc[0]
    assert shared == gigabytes(batch_size=100)  # two GPUs halve the batch, each has all parameters
    assert 5 < step < 15  # a ResNet-50 at 224 pixels keeps 50 to 150 MB per image in float32
    many = gigabytes(loss="potential_field.PotentialFieldLoss", loss_options={"proxies_per_class": 1000})
    assert many - gigabytes() == pytest.approx((100_000 - 100) * 512 * 16 / 1e9, abs=0.02)


@pytest.mark.parametrize("profile", ["quick", "small", "paper"])
def test_every_notebook_is_planned_without_data(profile, capsys):
    missing = cli.main(["plan", "--profile", profile])
    printed, errors = capsys.readouterr()
    assert missing == (profile != "quick") == ("error: dataset cub" in errors)  # glyphs are drawn
    assert "runs," in printed and "total " in printed
    for name, notebook in catalogue.studies().items():
        assert (name in printed) == bool(notebook.specs_untrained(notebook.params.from_values({"profile": profile})))


def test_the_search_is_counted_apart(capsys):
    assert cli.main(["plan", "10", "--profile", "paper", "-p", "protocol", "mlrc", "--each"]) == 1  # without data
    lines = capsys.readouterr().out.splitlines()
    assert sum("PFML" in line and " mlrc " in line for line in lines) == 40  # 10 seeds, 4 folds
    assert "tuning these methods first" in lines[-1]


def test_the_plan_counts_the_proxies_of_the_dataset():
    def gigabytes(**values):
        table, _ = plan.table_of(
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

    monkeypatch.setattr(work.manifests, "load", lambda name: Manifest())
    values = {"dataset": "folder:birds", "methods": ["untrained", "PFML"], "small_dim": 0, "mlrc_steps": 0, "seeds": 1}
    table, problems = plan.table_of(["10"], lambda cls: cls.from_values(values))
    untrained, _, trained, *_ = table.to_dict("records")
    assert problems == []
    assert untrained["hours"] == pytest.approx((600 / 3 / 5500 + 2 * 600**2 * 128 / 2e10) / 3600)
    assert trained["epochs"] == 300 / 10


def test_what_would_stop_a_run_is_an_error_with_its_remedy(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    batches, weights, data = work.problems([R50.replace(batch_size=6000, weights="imagenet")])
    assert batches == "batch_size 6000 is larger than the 5864 training images of cub; lower batch_size"
    assert "resnet50.tv_in1k.safetensors" in weights and str(tmp_path / "absent" / "weights") in weights
    assert data.startswith("dataset cub: ") and data.count("data fetch cub") == 1
    assert work._missing_data("cub-subset").endswith("; what it fetches is the whole set, dataset = 'cub'")
    with pytest.raises(FileNotFoundError, match=r"mine\.pth"):  # a spec of such weights cannot be made
        R50.replace(weights=str(tmp_path / "mine.pth"))
    fold = R50.replace(fold=0, batch_size=5000, restore_best=True, eval_every=10)
    assert work.problems([fold])[0].startswith("batch_size 5000 is larger than the 4398 training images of cub outside")
    assert cli.main(["plan", "10", "-p", "batch_size", "5000", "-p", "steps", "1"]) == 1
    assert "error: batch_size 5000 is larger than" in capsys.readouterr().err
    assert cli.main(["plan", "10", "-p", "steps", "1"]) == 0 and not capsys.readouterr().err


def test_weights_that_lie_here_are_none(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path))
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "resnet50.tv_in1k.pth").touch()
    assert len(work.problems([R50.replace(weights="imagenet")])) == 1  # the data


def test_hours_are_those_of_a_run_s_parts():
    parts = stopwatch.Parts(start=1.0, once=100.0, epoch=2.0, step=0.5, look=3.0, final=4.0, device="cpu")

    def seconds(*specs):
        rows = plan.plan({"": list(specs)}, speed=lambda spec: parts).to_dict("records")
        return [round(3600 * row["hours"], 6) for row in rows]

    often = {"steps": 116, "epochs": None, "eval_every": 58}  # two epochs, two looks
    once, again = seconds(R50, R50.replace(seed=1))
    assert once == 1 + 100 + 10 * 2 + 580 * 0.5 + 4
    assert again == once - 100  # activations are there by then
    (last_look_is_final,) = seconds(R50.replace(**often))
    assert last_look_is_final == 1 + 100 + 2 * 2 + 116 * 0.5 + 2 * 3
    (best,) = seconds(R50.replace(**often, fold=0, restore_best=True))  # 43 steps are an epoch of three folds
    assert best == 1 + 100 + 3 * 2 + 116 * 0.5 + 2 * 3 + 2 * 4  # the last weights and the best
    (untrained,) = seconds(RunSpec("cub"))
    assert untrained == 1 + 100 + 4


def test_a_kind_of_run_is_timed_once_on_its_own_images(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path))
    monkeypatch.setattr(stopwatch, "_TIMED", {})
    head = RunSpec(
        "glyphs",
        images_per_class=4,
        weights="symbols",
        train_from="head",
        embedding_size=8,
        loss="mean_field.MeanFieldNCALoss",
        loss_options={"alpha": 2.0},
        scheme="momentum",
        steps=1000,
        batch_size=20,
    )
    looking = head.replace(fold=0, restore_best=True, eval_every=10, monitor="MAP@R")
    speed = stopwatch.measured(head)
    assert speed.once > 0 and speed.step > 0 and speed.look == speed.final > 0 and speed.source == "measured here"
    assert stopwatch.measured(head.replace(seed=1, lr=1.0, steps=7, loss_options={"alpha": 3.0})) is speed
    other = stopwatch.measured(looking)
    assert other.look < other.final  # validation classes and one measure against all images and measures
    assert len(stopwatch._TIMED) == 2 and stopwatch.measured(head.replace(embedding_size=16)) is not speed
    table = plan.plan({"00": [head], "01": [head, looking]}, speed=stopwatch.measured)
    assert list(table["throughput"]) == ["measured here", "shared", "measured here"]
    assert list(plan.by_notebook(table)["hours"]) == pytest.approx(table.groupby("notebook")["hours"].sum())


def test_hours_can_be_measured_here(monkeypatch):
    taken = iter([9.0, 2.0, 2.0, 9.0, 0.5, 0.5, 9.0, 0.25, 0.25])  # the first call of each only warms up
    monkeypatch.setattr(stopwatch, "STEPS", 2)
    monkeypatch.setattr(stopwatch.timing, "seconds", lambda call, device: (call(), next(taken))[1])
    monkeypatch.setattr(stopwatch, "device_for_training", lambda: torch.device("cpu"))
    spec = RunSpec(
        "cub",  # which is not here
        image_size=28,
        backbone="conv4",
        embedding_size=8,
        loss="baselines.proxy_anchor",
        steps=30,
        batch_size=10,
    )
    speed = stopwatch.measured(spec)
    assert speed == throughput.Throughput(5.0, 28, "cpu", "measured here", evaluated=20.0, loss=0.25)
    assert stopwatch.measured(spec.replace(seed=1, lr=1.0)) == speed  # the same network and loss are measured once
    (row,) = plan.plan({"": [spec]}, speed=stopwatch.measured).to_dict("records")
    (_, _), test = work.counts(spec)
    assert row["hours"] == pytest.approx((30 * (2.0 + 0.25) + test / 20 + 2 * test**2 * 8 / 2e10) / 3600)
    assert (row["device"], row["throughput"]) == ("cpu", "measured here")


def test_what_is_on_record_is_said_where_it_can_be_compared(monkeypatch):
    params = catalogue.find("16").params.from_values({"profile": "small", "seeds": 1})
    file = records.file_of("small", params.notebook)
    assert plan.recorded(params.notebook, params) == ""  # no record
    records.append(file, {"run": "x"})
    assert plan.recorded(params.notebook, params) == ""  # the images are not here
    monkeypatch.setattr(work, "problems", lambda specs: [])
    monkeypatch.setattr(runs, "on_record", lambda specs, where: [where == file, *[False] * (len(specs) - 1)])
    assert plan.recorded(params.notebook, params).startswith(f"{params.notebook}: 1 of ")


def test_searches_that_are_not_there_yet_are_planned_with_their_hours(tmp_path, monkeypatch):
    def of(notebook, *changes):
        values = {"profile": "small", "dataset": "cub-subset"} | dict(changes)
        return plan.searching([notebook], lambda cls: cls.from_values(values), lambda spec: parts)

    parts = stopwatch.Parts(start=3600 / search.RUNS, once=0, epoch=0, step=0, look=0, final=0, device="cpu")
    monkeypatch.setattr(search, "folder", lambda profile: tmp_path)
    assert of("16").startswith(f"1 searches of {search.RUNS} runs each are not there yet, 1 hours: PFML")
    (wanted,) = searches.wanted([catalogue.find("16")], lambda cls: cls.from_values({"profile": "small"}))
    wanted.path.write_text("{}")
    assert of("16", ("seeds", 2)) == ""
    assert of("16", ("profile", "quick"), ("dataset", "glyphs")) == ""  # which tunes nothing
