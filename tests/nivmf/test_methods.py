"""The methods of nivMF: what their runs share and where they start; at the profile paper every run has the released
settings, as the tables beside this file have them."""

from pathlib import Path

import pandas as pd
import pytest
from planned import planned

from experiments.methods import spec_of
from experiments.nivmf import retrieval
from experiments.nivmf.methods import JOINT, METHODS
from experiments.nivmf.retrieval import TABLE_2
from experiments.report import catalogue, show
from experiments.training import runs

LR = 1e-5  # of the network in every released run
RELEASED = pd.read_csv(Path(__file__).with_name("released_runs.csv"), dtype=str, keep_default_na=False).to_dict(
    "records"
)


@pytest.mark.parametrize("row", RELEASED, ids=lambda row: f"{row['dataset']}-{row['dim']}")
def test_a_run_of_table_2_is_the_released_command(row):
    _, specs = planned("20", "paper", dataset=row["dataset"], embedding_size=int(row["dim"]))
    scheduled = [spec for spec in specs if spec.setting == TABLE_2]
    assert [(spec.method, spec.seed) for spec in scheduled] == [(JOINT, seed) for seed in range(5)]
    spec, kappa0 = scheduled[0], float(row["kappa0"])
    assert (spec.dataset, spec.backbone, spec.embedding_size) == (row["dataset"], "resnet50.tv_in1k", int(row["dim"]))
    assert (spec.epochs, spec.steps, spec.batch_size) == (int(row["epochs"]), None, int(row["batch"]))
    assert (spec.lr_drop_epochs, spec.lr_drop) == (tuple(map(int, row["tau"].split())), float(row["gamma"]))
    assert (spec.optimizer, spec.lr, spec.weight_decay) == ("adam", LR, 4e-4)
    assert (spec.freeze_batchnorm, spec.samples_per_class, spec.proxies_from_class_means) == (True, 2, True)
    assert spec.loss_options == {
        "distance": "el_nivmf",
        "concentration": kappa0,
        "temperature": float(row["t0"]),
        "embedding_scale": float(row["last_layer_x"]),
        "num_samples": int(row["samples"]),
        "omega": float(row["omega"]),
    }
    assert spec.loss_lr == pytest.approx(
        {
            "probabilistic.proxies": float(row["proxy_lr_x"]) * LR,
            "probabilistic.log_concentrations": float(row["kappa_lr_x"]) * LR / kappa0,
            "probabilistic.log_temperature": float(row["t_lr_x"]) * LR,
        }
    )


def test_what_the_reader_gives_wins_and_a_backbone_without_a_known_scale_needs_one():
    given = {"omega": 2.0, "samples": 3, "embedding_scale": 7.0, "epochs": 4, "batch_size": 32}
    _, specs = planned("20", "paper", **given, lr_drop_epochs=[2], lr_drop=0.5)
    for spec in specs:
        if spec.method == JOINT:
            options = [spec.loss_options[name] for name in ("omega", "num_samples", "embedding_scale", "concentration")]
            assert (*options, spec.epochs, spec.batch_size) == (2.0, 3, 7.0, 18.0, 4, 32)
    assert {spec.lr_drop_epochs for spec in specs} == {(), (2,)}
    assert TABLE_2 not in {spec.setting for spec in planned("20", "paper", lr_drop_epochs=[])[1]}
    params, _ = planned("20", weights="none")
    with pytest.raises(ValueError, match=r"embedding_scale is known for conv4.*not for resnet18"):
        spec_of(METHODS["EL-nivMF"], params, backbone="resnet18")
    known = retrieval.Retrieval.configured({"embedding_scale": 3.0, "weights": "none"})
    assert spec_of(METHODS["EL-nivMF"], known, backbone="resnet18").loss_options["embedding_scale"] == 3


def test_a_scheduled_run_is_scored_by_nmi_too(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path))
    values = {"methods": [JOINT], "steps": 2, "seeds": 1, "batch_size": 16, "samples": 1, "lr_drop_epochs": [0.01]}
    notebook = catalogue.find("20")
    params = notebook.configured(values)
    specs = [spec.replace(images_per_class=2) for spec in notebook.specs(params)]
    table = notebook.table(runs.run_all(specs, jobs=1), params)
    (nmi,) = table[table["metric"] == "NMI"].to_dict("records")
    assert nmi["setting"] == TABLE_2 and 0 < nmi["value"] < 100
    assert set(table["setting"]) == {"", TABLE_2, "curve"}


@pytest.mark.parametrize("values", [{"backbone": "bn_inception"}, {"dataset": "sop"}, {"embedding_size": 64}])
def test_what_was_not_released_has_the_settings_of_the_most_alike(values):
    params, specs = planned("20", "paper", **values)
    spec = next(spec for spec in specs if spec.setting == TABLE_2)
    assert (spec.epochs, spec.loss_options["embedding_scale"]) == (250, 30 if "embedding_size" in values else 50)
    shown = show.settings(spec, params, METHODS[JOINT])
    assert "none was released for" in shown["loss.concentration"][3]
