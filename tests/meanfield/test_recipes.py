"""At the profile paper every run has the settings of Sec. 4.2 and of the released README."""

import pytest

from experiments.meanfield.methods import METHODS
from experiments.report import catalogue, show

SCHEDULES = {  # data set: (epochs of the drops, factor, warm-up, BatchNorm frozen)
    "cub": ((10, 20, 30, 40, 50), 0.5, 1.0, True),
    "cars": ((20, 40), 0.5, 1.0, True),
    "sop": ((20, 40), 0.25, 0.0, False),
    "inshop": ((20, 40), 0.25, 0.0, False),
}


def paper(name, **values):
    notebook = catalogue.find(name)
    params = notebook.configured({"profile": "paper"} | values)
    return params, notebook.specs_untrained(params)


@pytest.mark.parametrize("dataset", SCHEDULES)
def test_the_traditional_protocol(dataset):
    params, specs = paper("32", dataset=dataset)
    drops, factor, warmup, frozen = SCHEDULES[dataset]
    assert params.seeds == 10
    for spec in (spec for spec in specs if spec.loss):
        assert (spec.backbone, spec.embedding_size, spec.batch_size) == ("bn_inception", 512, 128)
        assert (spec.epochs, spec.patience, spec.monitor, spec.eval_every_epochs) == (60, 5, "MAP@R", 1)
        assert (spec.optimizer, spec.lr, spec.weight_decay, spec.loss_weight_decay) == ("adamw", 1e-4, 1e-4, 1e-4)
        assert (spec.lr_drop_epochs, spec.lr_drop) == (drops, factor)
        assert (spec.warmup_epochs, spec.freeze_batchnorm) == (warmup, frozen)
    one = {spec.method: spec for spec in specs if not spec.setting and spec.seed == 0}
    assert one["MFCont"].loss_options == {"positive_margin": 0.02, "negative_margin": 0.3, "regularization": 0.0}
    assert one["MFCWMS"].loss_options == {"alpha": 0.01, "beta": 80.0, "delta": 0.8, "regularization": 0.0}
    assert one["MFCont"].loss_lr == one["MFCWMS"].loss_lr == {"mean_fields": 0.2}
    assert one["ProxyAnchor"].loss_options == {"margin": 0.1, "alpha": 32.0}
    assert one["ProxyAnchor"].loss_lr == {"*": 0.01}
    assert [spec.samples_per_class for spec in (one["MFCont"], one["ProxyAnchor"], one["Cont"])] == [None, None, 4]


def test_every_setting_of_the_record_is_the_runs_and_says_where_it_stands():
    params, specs = paper("32")
    for name in ("MFCont", "MFCWMS"):
        spec = next(spec for spec in specs if spec.method == name)
        run = vars(spec) | {f"loss.{key}": value for key, value in spec.loss_options.items()}
        run |= {f"loss_lr.{key}": value for key, value in spec.loss_lr.items()}
        record = params.published(name)
        assert {key: run[key] for key in record} == {key: setting.value for key, setting in record.items()}
        shown = show.settings(spec, params, METHODS[name]).values()
        assert all(published in (value, "") for value, published, *_ in shown)


def test_ablations_at_the_profile_paper_are_the_traditional_protocol():
    for name in ("33", "34", "35", "36", "37"):
        _, specs = paper(name)
        for spec in (spec for spec in specs if spec.loss):
            assert (spec.optimizer, spec.lr_drop, spec.train_from) == ("adamw", 0.5, None)
            assert spec.patience == (None if ";epochs=" in spec.setting else 5)


def test_the_transformer_of_table_14():
    _, specs = paper("39")
    for spec in (spec for spec in specs if spec.loss):
        assert (spec.backbone, spec.image_size, spec.pooling) == ("vit_base_patch16_224.augreg_in21k", 224, "token")


def test_below_the_profile_paper_the_recipe_is_the_profiles():
    for profile in ("quick", "small"):
        notebook = catalogue.find("32")
        spec = notebook.specs(notebook.configured({"profile": profile}))[-1]
        assert (spec.patience, spec.loss_weight_decay, spec.lr_drop_epochs) == (None, None, ())
