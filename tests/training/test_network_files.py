"""The file of a network gives the embeddings of the run that it was made from."""

import json
from pathlib import Path

import official_layouts
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from tiny import TINY

from experiments.training import batches, network_files, runs
from experiments.training.spec import RunSpec


def embedded(path: Path, files: list) -> torch.Tensor:
    saved = network_files.load(path)
    return torch.from_numpy(network_files.embed(saved, [network_files.read(Path(file), saved.about) for file in files]))


def test_files_of_grey_images_have_the_embeddings_of_the_run(tmp_path):
    run = runs.run(TINY)
    path = network_files.save(run, tmp_path / "glyphs.safetensors")
    manifest, files = batches.load_dataset(run.spec), [tmp_path / f"{row}.png" for row in range(40)]
    for index, file in zip(manifest.indices("test"), files):
        Image.fromarray(manifest.images[index]).save(file)
    assert torch.allclose(embedded(path, files), F.normalize(run.embeddings[:40], dim=1), atol=1e-6)


def test_colour_photographs_of_several_shapes_are_prepared_as_in_the_run(tmp_path):
    official_layouts.save_images([tmp_path / "own" / f"class {n // 3}" / f"{n}.png" for n in range(12)])
    asked = {"backbone": "squeezenet1_1", "image_size": 40, "test_resize": 48, "embedding_size": 8, "steps": 1}
    batch = {"batch_size": 4, "samples_per_class": 2, "threads": 1}
    spec = RunSpec(f"folder:{tmp_path / 'own'}", loss="baselines.contrastive", **batch, **asked)
    without = spec.replace(test_resize=None, loss=None, steps=None, embedding_size=None)
    for variant in (spec, spec.replace(original_images=True), without):
        run = runs.run(variant)
        path = network_files.save(run, tmp_path / "own.safetensors")
        manifest = batches.load_dataset(variant)
        files = [manifest.images[index] for index in manifest.indices("test")]
        assert torch.allclose(embedded(path, files), F.normalize(run.embeddings, dim=1), atol=1e-6)
        assert str(tmp_path) not in json.dumps(network_files.load(path).about)


def test_what_is_no_file_of_a_network_is_refused(tmp_path):
    run = runs.run(TINY)
    whole = network_files.save(run, tmp_path / "whole.safetensors").read_bytes()
    with pytest.raises(FileNotFoundError, match="nothing"):
        network_files.load(tmp_path / "nothing.safetensors")
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    (tmp_path / "half.safetensors").write_bytes(whole[:-1000])
    (tmp_path / "wrong.safetensors").write_bytes(whole.replace(b'\\"channels\\": 1', b'\\"channels\\": 3'))
    for name in ("other", "half", "wrong"):
        with pytest.raises(ValueError, match=rf"{name}.safetensors is no network of notebook 01, or damaged"):
            network_files.load(tmp_path / f"{name}.safetensors")
    with pytest.raises(ValueError, match=r"ends in \.safetensors"):
        network_files.save(run, tmp_path / "network.pth")
