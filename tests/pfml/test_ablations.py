"""Notebooks 13 to 16: their common point, what is trained at each profile, and that their claims find their rows."""

import json

import pytest
import torch

from experiments.pfml import ablations, methods
from experiments.training.builders import build_loss

ABLATIONS = {
    "M=15": ablations.Proxies,
    "delta=0.2": ablations.Delta,
    "alpha=3": ablations.Alpha,
    "delta_rep=0.2": ablations.Repulsion,
}


def content(specs) -> set[str]:
    return {json.dumps(spec.as_dict(), sort_keys=True) for spec in specs}


@pytest.mark.parametrize("profile", ["quick", "small", "paper"])
def test_the_default_point_of_the_ablations_is_one_run(profile):
    points = []
    for setting, study in ABLATIONS.items():
        specs = study.specs(study.configured({"profile": profile, "samples_per_class": 4}))
        points.append(content(spec for spec in specs if spec.setting == setting))
    assert points[0] == points[1] == points[2] == points[3] != set()


def test_without_proxies_batches_have_several_images_of_a_class_for_every_number():
    for profile in ("quick", "small", "paper"):
        specs = ablations.Proxies.specs(ablations.Proxies.configured({"profile": profile}))
        assert {spec.samples_per_class for spec in specs if spec.method == "PFML"} == {4}


def test_radii_of_repulsion_are_compared_with_the_parameter_s_radius_whatever_a_search_found(monkeypatch):
    search = {
        "begun": {"spec": {"loss": methods.METHODS["PFML"].loss}},
        "found": {"options": {"alpha": 1.0, "delta": 0.27}},
        "conditions": {"dataset": "cub-subset", "train_from": "fire6"},
        "trials": [],
    }
    monkeypatch.setattr(ablations.Repulsion.params, "searches", lambda params: {"PFML": search})
    params = ablations.Repulsion.configured({"profile": "small"})
    options = {spec.setting: spec.loss_options for spec in ablations.Repulsion.specs(params) if spec.loss}
    assert {loss_options["alpha"] for loss_options in options.values()} == {params.alpha}
    assert {loss_options["delta"] for loss_options in options.values()} == {params.delta}
    radii = {setting: loss_options.get("delta_rep", loss_options["delta"]) for setting, loss_options in options.items()}
    assert radii == {f"delta_rep={radius:g}": radius for radius in params.radii}


def test_alpha_zero_is_run_as_a_logarithm_and_as_printed():
    specs = ablations.Alpha.specs(ablations.Alpha.configured({}))
    points, labels = torch.randn(8, 16), torch.arange(8) % 2
    steepness = {}
    for spec in specs:
        if spec.setting in ("alpha=0", ablations.LITERAL):
            embeddings = points.clone().requires_grad_()
            build_loss(spec, 2, 16)(embeddings, labels).backward()
            steepness[spec.setting] = embeddings.grad.norm().item()
    assert steepness["alpha=0"] > 0 and steepness[ablations.LITERAL] == 0


def test_known_values_of_figure_3():
    curve = methods.published_curve("Fig. 3(d)")
    assert curve["CUB-200-2011"][0.45] == 66.6 and curve["Cars-196"][0.22] == 91.5 and len(curve["Cars-196"]) == 7
    assert methods.published_curve("Fig. 3(c)")["CUB-200-2011"] == {0.0: 68.2, 3.0: 73.4}
