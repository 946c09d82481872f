"""A spec that cannot be run is an error when it is made."""

import math

import pytest
from tiny import TINY

from experiments.training.spec import from_record

TAIL = {"train_from": "block3", "image_size": 24, "test_resize": 28, "cached_views": 4}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"loss": "potential_field.Potential"}, r"unknown loss 'potential_field.Potential'.*PotentialFieldLoss"),
        ({"steps": None}, "exactly one of steps and epochs"),
        ({"optimizer": "sgdd"}, "unknown optimizer 'sgdd'.*adam, adamw, rmsprop"),
        ({"label_noise": 1.5}, "label_noise"),
        ({"lr": 0.0}, "lr must be greater than 0"),
        ({"monitor": "accuracy"}, r"unknown monitor 'accuracy'.*P@1.*R@8"),
        ({"fold": 4}, r"fold must lie in \[0, 4\)"),
        ({"eval_every": 2, "eval_every_epochs": 1.0}, "at most one of eval_every"),
        ({"patience": 3}, "need eval_every"),
        ({"eval_every": 0}, "eval_every must be greater than 0, got 0"),
        ({"seed": 0.5}, "seed must be a valid integer, got 0.5"),
        ({"loss_lr": {"proxies": -0.1}}, r"loss_lr\['proxies'\] must be greater than or equal to 0, got -0.1"),
        ({"loss_lr": {"centers": 1.0}}, r"loss_lr names \['centers'\], but .* has the parameters \['proxies'\]"),
        ({"weight_decay": math.nan}, "weight_decay must be a finite number, got nan"),
        ({"lr_drop": 2.0}, r"lr_drop must be less than or equal to 1, got 2.0"),
        ({"crop_scale": (0.5, 0.1)}, "crop_scale must be two increasing shares"),
        ({"ks": (0, 1)}, r"ks\[0\] must be greater than 0, got 0"),
        ({"image_size": 32, "test_resize": 28}, "test_resize must be at least image_size = 32"),
        ({"pooling": "mean"}, r"unknown pooling 'mean'.*avg"),
        ({"backbone": "resnet5O"}, r"unknown backbone 'resnet5O'; did you mean 'resnet50'"),
        ({"weights": "imagenet"}, r'conv4 has no ImageNet weights here; use .*"none"'),
        ({"weights": "nowhere.pth"}, "weights: no file nowhere.pth; give an existing file"),
        ({"loss_options": {"temperature": -1.0}}, r"refuses its options .*temperature must be positive.*got -1.0"),
        ({"loss_options": {"temperature": "hot"}}, "refuses its options .*hot"),
        ({"loss_options": {"margin": 0.1}}, r"has no option 'margin'.*There are: .*temperature"),
        ({"proxies_from_class_means": True}, r"proxies_from_class_means.*proxy_nca_pp has no initialize_proxies"),
        ({"views": 2}, r"views=2.*give image_size"),
        ({"train_from": "block9"}, r"train_from must be a block of conv4, block1, block2, block3, block4, head"),
        ({"cached_views": 2, "image_size": 24}, "cached_views is of runs with train_from"),
        (TAIL | {"image_size": None, "test_resize": None}, "cached_views=4: views are crops; give image_size"),
        (TAIL | {"views": 2}, "cached_views of at least 8, got 4"),
        ({"head_start": "ica"}, "head_start must be 'pca' or 'whitened', got 'ica'"),
        ({"head_start": "pca", "embedding_size": None}, "head_start='pca' is of a head.*give an embedding_size"),
        ({"neighbours": 4, "samples_per_class": 4}, "at most one of samples_per_class and neighbours"),
        ({"algorithm": "momentum"}, r"unknown algorithm 'momentum'; did you mean 'momentum_encoder'.*supervised"),
        ({"algorithm_options": {"momentum": 0.9}}, r"algorithm 'supervised' has no option 'momentum'"),
        (
            {"algorithm": "momentum_encoder", "algorithm_options": {"momentum": 1}},
            "momentum must be less than 1, got 1",
        ),
        ({"samples_per_class": 3}, "batch_size must be a multiple of samples_per_class = 3, got 16"),
    ],
)
def test_a_bad_spec_is_an_error_before_anything_runs(change, message):
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        TINY.replace(**change)


def test_what_determines_the_numbers_is_every_field_but_the_labels():
    plain = TINY.replace(method="PFML", setting="x=1").as_dict()
    assert len(plain) == len(TINY.__dataclass_fields__) - len(("method", "setting", "protocol"))
    assert plain == TINY.as_dict() and plain["seed"] == TINY.seed
    assert from_record(plain, method="PFML", setting="x=1") == TINY.replace(method="PFML", setting="x=1")
