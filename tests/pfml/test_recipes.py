"""At the profile paper PFML has Table 8's settings for every data set and backbone."""

from pathlib import Path

import pandas as pd
import pytest
from planned import planned

from experiments.pfml.methods import DINO, METHODS, VIT
from experiments.report import show

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
    shown = show.settings(spec, params, METHODS["PFML"])
    assert ("IBN/512" if row["backbone"] == "bn_inception" else "R50/512") in shown["batch_size"][3]


@pytest.mark.parametrize("backbone", [VIT, DINO])
@pytest.mark.parametrize("dataset", ["cub", "cars", "sop"])
def test_a_transformer_has_384_dimensions_and_says_whose_settings_it_takes(backbone, dataset):
    params, specs = planned("10", "paper", dataset=dataset, backbone=backbone)
    spec = next(spec for spec in specs if spec.method == "PFML" and not spec.setting)
    assert (spec.embedding_size, spec.batch_size, spec.pooling, spec.image_size) == (384, 100, "token", 224)
    assert "none for transformers" in show.settings(spec, params, METHODS["PFML"])["batch_size"][3]
