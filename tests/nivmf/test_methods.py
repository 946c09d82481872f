"""The methods of nivMF: what their runs share, where they start, and that each claim's test finds its rows."""

import pytest
import torch

from dmlrepro.losses import nivmf as losses
from experiments.methods import BASELINES, spec_of
from experiments.nivmf import distances, retrieval
from experiments.nivmf.methods import DISTANCES, JOINT, METHODS, TUNED
from experiments.report import catalogue
from experiments.training.builders import build_loss


def quick(name, **changes):
    notebook = catalogue.find(name)
    params = notebook.configured(changes)
    return params, notebook.specs_untrained(params)


@pytest.mark.parametrize(
    "values",
    [{"train_from": "head"}, *({"profile": "paper", "protocol": protocol} for protocol in ("mlrc", "conventional"))],
    ids=str,
)
def test_baselines_are_the_runs_of_notebook_10(values):
    shared = [spec for spec in quick("20", **values)[1] if spec.method in BASELINES and spec.method != "Margin"]
    assert {spec.method for spec in shared} > {"ProxyNCA++", "ProxyAnchor"}
    theirs = quick("10", **values, methods=["untrained", "ProxyNCA++", "ProxyAnchor", "MultiSimilarity"])[1]
    assert all(spec in theirs for spec in shared)


def test_only_the_loss_differs_from_proxy_nca():
    params, specs = quick("22")
    baseline = spec_of(BASELINES["ProxyNCA++"], params).as_dict()
    loss_fields = {"loss", "loss_options", "loss_lr", "proxies_from_class_means"}
    for spec in specs:
        if spec.method in DISTANCES and not spec.setting and spec.seed == 0:
            settings = spec.as_dict()
            assert {key for key in settings if settings[key] != baseline[key]} == loss_fields


@pytest.mark.parametrize("method", ["Margin", JOINT, *DISTANCES])
def test_every_loss_can_be_built_and_every_rate_names_a_parameter(method):
    params, _ = quick("20")
    spec = spec_of(METHODS[method], params)
    loss = build_loss(spec, 3, 8)
    names = dict(loss.named_parameters())
    assert set(spec.loss_lr) - {"*"} <= set(names)
    if "*" not in spec.loss_lr:
        assert set(names) == set(spec.loss_lr)
        loss.initialize_proxies(torch.eye(3, 8))


@pytest.mark.parametrize("weights", ["none", "symbols"])
def test_a_small_network_starts_at_the_tuned_values_and_one_of_photographs_at_the_released_ones(weights):
    small = distances.Distances.configured({"profile": "quick", "weights": weights})
    pretrained = distances.Distances.configured({"profile": "small"})
    for name, distance in DISTANCES.items():
        options = spec_of(METHODS[name], small).loss_options
        assert (options["concentration"], options["temperature"]) == TUNED[name]
        loss = build_loss(spec_of(METHODS[name], pretrained), 3, 8)
        assert loss.log_temperature.exp().item() == pytest.approx(losses.DEFAULTS[distance][1])


def test_a_backbone_without_a_known_scale_needs_one():
    params, _ = quick("20", weights="none")
    with pytest.raises(ValueError, match=r"embedding_scale is known for conv4.*not for resnet18"):
        spec_of(METHODS["EL-nivMF"], params, backbone="resnet18")
    given = retrieval.Retrieval.configured({"embedding_scale": 3.0, "weights": "none"})
    assert spec_of(METHODS["EL-nivMF"], given, backbone="resnet18").loss_options["embedding_scale"] == 3
