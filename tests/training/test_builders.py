"""Names become losses and schemes; what a builder does not take is not given."""

from types import SimpleNamespace

import pytest

from experiments.training import builders


@pytest.mark.parametrize(
    "builder, expected",
    [
        (lambda num_classes, embedding_size, scale=1.0: (num_classes, embedding_size, scale), (5, 8, 2.0)),
        (lambda embedding_size, num_proxies=100, scale=1.0: (embedding_size, num_proxies, scale), (8, 100, 2.0)),
        (lambda form="c1", scale=1.0: (form, scale), ("c1", 2.0)),
    ],
)
def test_a_loss_is_given_the_sizes_that_it_takes(builder, expected, monkeypatch):
    monkeypatch.setattr(builders, "loss_builder", lambda name: builder)
    spec = SimpleNamespace(loss="of.another.signature", loss_options={"scale": 2.0}, seed=0)
    assert builders.build_loss(spec, 5, 8) == expected
