"""A spec that cannot be run is an error when it is made."""

import pytest
from tiny import TINY


@pytest.mark.parametrize(
    "change, message",
    [
        ({"loss": "potential_field.Potential"}, r"unknown loss.*PotentialFieldLoss"),
        ({"loss": "fields.PotentialFieldLoss"}, r"losses live in the modules.*potential_field"),
        ({"steps": None}, "exactly one of steps and epochs"),
        ({"optimizer": "sgdd"}, "unknown optimizer"),
        ({"label_noise": 1.5}, "label_noise"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"monitor": "accuracy"}, r"monitor must be one of P@1.*R@8, got 'accuracy'"),
        ({"fold": 4}, r"fold must lie in \[0, 4\)"),
        ({"eval_every": 2, "eval_every_epochs": 1.0}, "at most one of eval_every"),
        ({"patience": 3}, "need eval_every"),
        ({"restore_best": True}, "need eval_every"),
        ({"eval_every": 0}, "eval_every must be positive"),
        ({"views": 2}, r"views=2.*give image_size"),
        ({"neighbours": 4, "samples_per_class": 4}, "at most one of samples_per_class and neighbours"),
        ({"scheme": "momentun"}, r"unknown scheme 'momentun'; choose one of momentum, supervised"),
        ({"scheme_options": {"momentum": 0.9}}, r"scheme 'supervised' has no option momentum; it takes \[\]"),
        ({"scheme": "momentum", "scheme_options": {"decay": 1}}, r"no option decay; it takes \['momentum', 'consist"),
    ],
)
def test_a_bad_spec_is_an_error_before_anything_runs(change, message):
    with pytest.raises(ValueError, match=message):
        TINY.replace(**change)
