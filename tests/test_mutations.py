"""Mistakes made on purpose: what checks the specs of the notebooks and the tables of their runs must find each."""

import json
from collections import defaultdict

import numpy as np
import pytest
from tiny import TINY

from experiments.analysis import goldens, results
from experiments.datasets import manifests
from experiments.params import Params
from experiments.pfml.methods import published_for
from experiments.report import catalogue
from experiments.training import batches, builders, loop, protocols, seeds

NOTEBOOKS = sorted(catalogue.studies())


def specs_of(name: str, profile: str) -> tuple[list, Params]:
    notebook = catalogue.find(name)
    params = notebook.configured({"profile": profile})
    return notebook.specs_untrained(params), params


def unpublished(specs: list) -> list[str]:
    """Options of PFML at its default setting that are not those of the paper."""
    deviating = []
    for spec in specs:
        if spec.method == "PFML" and not spec.setting:
            published = published_for(spec.dataset, spec.backbone)
            names = ("alpha", "delta", "proxies_per_class")
            deviating += [name for name in names if spec.loss_options[name] != published[f"loss.{name}"].value]
    return deviating


def without_all_seeds(specs: list, params: Params) -> list[str]:
    """Runs that are not there once for each of the seeds 0, 1, ..., whichever of them keep their evaluations."""
    seeds = defaultdict(list)
    whatever = {"seed": None, "keep_history": None, "eval_every": None, "eval_every_epochs": None}
    for spec in specs:
        alike = spec.as_dict() | whatever | {"labels": (spec.method, spec.setting, spec.protocol)}
        seeds[json.dumps(alike, sort_keys=True)].append(spec.seed)
    return [run for run, there in seeds.items() if there != list(range(params.seeds))]


def leaked(task: batches.Task) -> set[int]:
    """Images that the batches of a task show and that are no training images, by the manifest that is read anew."""
    split = batches.load_dataset(task.spec).split
    drawn = (task.train[picked.numpy()] for _, picked in task.index_batches(0, 2 * task.steps_per_epoch))
    return {index for some in drawn for index in some.tolist() if split[index] != "train"}


def in_both_parts(manifest: manifests.Manifest) -> int:
    """How many images of the test part are training images too, pixel by pixel."""
    images = [image.tobytes() for image in manifest.images]
    trained = {images[index] for index in manifest.indices("train")}
    return sum(images[index] in trained for index in manifest.indices("test"))


@pytest.mark.parametrize("profile", ["quick", "paper"])
@pytest.mark.parametrize("name", ["00_tour", "10_pfml_retrieval", "12_pfml_proxy_alignment"])
def test_delta_times_ten_is_found_in_the_specs(name, profile):
    specs, _ = specs_of(name, profile)
    pfml = [spec for spec in specs if spec.method == "PFML" and not spec.setting]
    assert pfml and unpublished(specs) == []
    for option in ("alpha", "delta", "proxies_per_class"):
        value = 10 * pfml[0].loss_options[option] if option != "alpha" else 3.5  # ten times alpha is no spec at all
        wrong = [spec.replace(loss_options={**spec.loss_options, option: value}) for spec in pfml]
        assert set(unpublished(wrong)) == {option}


@pytest.mark.parametrize("name", [name for name in NOTEBOOKS if not name.startswith("0")])
def test_one_seed_for_all_is_found_in_the_specs(name):
    assert without_all_seeds(*specs_of(name, "quick")) == []
    study = catalogue.find(name)
    params = study.configured({"seeds": 2})
    if specs := study.specs_untrained(params):
        assert without_all_seeds([spec.replace(seed=0) for spec in specs], params)


def test_one_seed_for_all_is_found_in_the_scores(monkeypatch):
    """Specs may differ where the streams drawn from them do not."""

    def table():
        specs = [TINY.replace(seed=seed, method="ProxyNCA++") for seed in (0, 1)]
        scored = [protocols.Scored(spec, "glyphs", loop.train(spec).rows) for spec in specs]
        return results.tidy(scored, catalogue.find("10").configured({}))

    assert goldens.seeds_that_agree(table()) == ""
    derive_seed = seeds.derive_seed
    for module in (builders, batches, loop.inference):
        monkeypatch.setattr(module, "derive_seed", lambda seed, *words: derive_seed(0, *words))
    assert goldens.seeds_that_agree(table()) == "ProxyNCA++"


def test_test_images_in_the_training_batches_are_found_though_counts_agree(monkeypatch):
    manifest = batches.load_dataset(TINY)
    assert leaked(batches.Task(TINY, manifest)) == set()
    train, test = (manifest.indices(part)[:40] for part in ("train", "test"))
    split, labels = manifest.split.copy(), manifest.labels.copy()
    split[train], split[test] = "test", "train"  # as many as before are in each part, and of each class
    labels[train], labels[test] = labels[test], labels[train].copy()
    wrong = manifests.replace(
        manifest, split=split, labels=labels, is_query=split == "test", is_gallery=split == "test"
    )
    assert manifests._counts(wrong) == manifests._counts(manifest)
    assert leaked(batches.Task(TINY, wrong)) == set(test.tolist())


def test_test_images_copied_over_training_images_are_found_though_counts_agree():
    manifest = manifests.load("glyphs", images_per_class=4)
    assert in_both_parts(manifest) == 0
    pixels = np.array(manifest.images)
    train, test = (manifest.indices(part)[:40] for part in ("train", "test"))
    pixels[train] = pixels[test]
    wrong = manifests.replace(manifest, images=pixels)
    assert manifests._counts(wrong) == manifests._counts(manifest)
    assert in_both_parts(wrong) == 40
    assert wrong.digest() != manifest.digest()
