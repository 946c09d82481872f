"""Notebook 12: which runs it shares, how their gradients are clipped, and what is measured on them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.spatial.distance import pdist

from experiments.pfml import alignment
from experiments.training import runs


def test_what_a_search_finds_holds_for_every_way_of_pfml(monkeypatch):
    def found(specs, records, params):
        return [(spec.replace(loss_options={**spec.loss_options, "alpha": 5.0}), []) for spec in specs]

    monkeypatch.setattr(alignment, "search_each", found)
    specs = alignment.proxy_alignment(alignment.Alignment.configured({"methods": ["PFML"], "seeds": 1}))
    assert [spec.setting for spec in specs] == ["", *alignment.OTHERWISE]
    assert {spec.loss_options["alpha"] for spec in specs} == {5.0}
    drawn = [spec for spec in specs if "proxy_norm" in spec.loss_options]
    assert {spec.setting.partition(";")[0] for spec in drawn} == {"proxies=as drawn"}


def test_class_distances_are_those_of_scipy():
    points, labels = torch.randn(12, 5, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    classes = [F.normalize(points.double(), dim=1)[labels == c] for c in range(3)]
    distances = alignment.class_distances(points, labels)
    assert distances["intra_class_distance"] == pytest.approx(np.mean([pdist(own) for own in classes]))
    assert distances["class_mean_distance"] == pytest.approx(pdist([own.mean(0).numpy() for own in classes]).mean())


def test_alignment_of_a_finished_run():
    values = {"steps": 2, "seeds": 1, "point_sets": 1, "proxies_per_class": 3}
    params = alignment.Alignment.configured(values | {"methods": ["untrained", "PFML", "ProxyNCA++"]})
    finished = runs.run_all(alignment.proxy_alignment(params), jobs=1)
    table = alignment.alignment_table(finished, params)
    value = table.set_index(["method", "setting", "metric"])["value"]
    for method, proxies in (("PFML", 3), ("ProxyNCA++", 1)):
        (run,) = (run for run in finished if (run.spec.method, run.spec.setting) == (method, ""))
        assert run.loss_state()["proxies"].numel() == 200 * proxies * 64
        assert value[method, "", "nearest sample"] <= value[method, "", "W2"] <= value[method, "", "true W2"] <= 2
    assert value["ProxyNCA++", "", "nearest sample"] == pytest.approx(value["ProxyNCA++", "", "W2"])  # one proxy
    assert value["PFML", "M=5", "W2/delta"] == pytest.approx(1, abs=1e-3)
    assert value["CPML", "M=1;case=a sample at the mean", "W2/delta"] == pytest.approx(0, abs=1e-3)
    assert set(value["PFML", :, "W2"].index) == {"", *alignment.OTHERWISE}
