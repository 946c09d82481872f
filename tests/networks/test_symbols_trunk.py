"""The embedded trunk: what it knows of glyphs, which it has never seen, and that its recipe makes it."""

import runpy

import pytest

from experiments.files import repository_root
from experiments.networks import backbones
from experiments.training import runs
from experiments.training.spec import RunSpec


def recall_on_glyphs(cache, monkeypatch, weights):
    monkeypatch.setenv("DMLREPRO_CACHE", str(cache))
    run = runs.run(RunSpec("glyphs", weights=weights, embedding_size=None, threads=1))
    return {row["metric"]: row["value"] for row in run.rows}["R@1"]


def test_the_file_is_a_complete_conv4_that_helps_on_glyphs(tmp_path, monkeypatch):
    net = backbones.build("conv4", 8, weights="symbols", in_channels=1)
    other = backbones.build("conv4", 8, weights="symbols", in_channels=1, seed=1)
    assert all(ours.equal(theirs) for ours, theirs in zip(net.trunk.parameters(), other.trunk.parameters()))
    assert backbones.weights_digest("conv4", "symbols") == backbones.sha256_once(backbones.SYMBOLS)
    assert recall_on_glyphs(tmp_path, monkeypatch, None) < 0.35
    assert 0.72 < recall_on_glyphs(tmp_path, monkeypatch, "symbols") < 0.80  # below what training on glyphs gives


@pytest.mark.slow
def test_the_recipe_makes_a_trunk_of_equal_worth(tmp_path, monkeypatch):
    pretrain = runpy.run_path(str(repository_root() / "workflow" / "pretrain.py"))["pretrain"]
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path))
    pretrain(tmp_path / "again.safetensors")
    committed = recall_on_glyphs(tmp_path, monkeypatch, "symbols")
    again = recall_on_glyphs(tmp_path, monkeypatch, str(tmp_path / "again.safetensors"))
    assert again == pytest.approx(committed, abs=0.03)  # seeds differ by a point
