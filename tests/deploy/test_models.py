"""A model file gives the vectors of the run that it was made from, here and with torch alone."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from tiny import TINY

from experiments.deploy import models
from experiments.training import batches, runs
from experiments.training.spec import RunSpec


def photographs(folder: Path, classes: int = 4, per_class: int = 3) -> Path:
    """Pictures of several shapes in a folder per class."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class {label}").mkdir(parents=True)
        for number in range(per_class):
            pixels = rng.integers(0, 80, (50 + 9 * number, 61 - 4 * label, 3), dtype=np.uint8) + np.uint8(40 * label)
            Image.fromarray(pixels).save(folder / f"class {label}" / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory, shared_cache):
    """A run on glyphs, its model file, and its test images as files."""
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DMLREPRO_CACHE", str(shared_cache))
        run = runs.run(TINY)
        path = models.export(run, folder / "glyphs.safetensors")
        manifest = batches.load_dataset(run.spec)
    files = [folder / f"{row}.png" for row in range(40)]
    for index, file in zip(manifest.indices("test"), files):
        Image.fromarray(manifest.images[index]).save(file)
    return run, path, files


def test_the_file_gives_the_vectors_of_the_run(exported):
    run, path, files = exported
    model = models.load(path)
    vectors = model.vectors(torch.stack([model.read(file) for file in files]))
    assert torch.allclose(vectors, F.normalize(run.embeddings[:40], dim=1), atol=1e-6)
    assert model.about["classes"][0] == batches.load_dataset(run.spec).class_names[0]
    assert len(model.about["classes"]) == 200 and model.about["made"] == run.made


def test_colour_photographs_are_prepared_as_in_the_run(tmp_path):
    folder = photographs(tmp_path / "own")
    asked = {"backbone": "squeezenet1_1", "image_size": 40, "test_resize": 48, "embedding_size": 8, "steps": 1}
    spec = RunSpec(
        f"folder:{folder}", loss="baselines.contrastive", batch_size=4, samples_per_class=2, threads=1, **asked
    )
    for variant in (spec, spec.replace(original_images=True), spec.replace(test_resize=None, loss=None, steps=None)):
        run = runs.run(variant)
        model = models.load(models.export(run, tmp_path / "own.safetensors"))
        manifest = batches.load_dataset(variant)
        files = [manifest.images[index] for index in manifest.indices("test")]
        assert len(files) == 6
        vectors = model.vectors(torch.stack([model.read(file) for file in files]))
        assert torch.allclose(vectors, F.normalize(run.embeddings, dim=1), atol=1e-6)
        assert str(tmp_path) not in json.dumps(model.about)


def test_the_printed_lines_run_with_torch_alone(exported, tmp_path):
    run, path, files = exported
    printed = models.lines(path).splitlines()
    assert len(printed) == 5
    pixels = torch.stack([models.load(path).read(file) for file in files])
    torch.save(pixels, tmp_path / "pixels.pt")
    code = ["import sys", "sys.modules['dmlrepro'] = sys.modules['experiments'] = None", *printed]
    code += [f"torch.save(embed(torch.load({str(tmp_path / 'pixels.pt')!r})), {str(tmp_path / 'vectors.pt')!r})"]
    code += ["print(len(classes), [name for name in sys.modules if name.partition('.')[0] == 'torchvision'])"]
    command = [sys.executable, "-I", "-c", "\n".join(code)]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "200 []\n"
    assert torch.allclose(torch.load(tmp_path / "vectors.pt"), F.normalize(run.embeddings[:40], dim=1), atol=1e-5)


def test_where_torch_exports_nothing_the_lines_need_this_package(exported, tmp_path, monkeypatch, capsys):
    run, _, files = exported
    (tmp_path / "a.pt2").write_bytes(b"of another network")

    def refuse(*_, **__):
        raise RuntimeError("data-dependent control flow")

    monkeypatch.setattr(torch.export, "export", refuse)
    path = models.export(run, tmp_path / "a.safetensors")
    assert "no a.pt2: torch.export does not take this network (data-dependent control flow)" in capsys.readouterr().out
    assert not (tmp_path / "a.pt2").exists()
    scope: dict = {}
    exec(models.lines(path).replace("image.jpg", str(files[0])), scope)
    assert torch.allclose(scope["vectors"], F.normalize(run.embeddings[:1], dim=1), atol=1e-6)


def test_what_is_no_model_file_is_refused_with_a_remedy(exported, tmp_path):
    run, path, _ = exported
    with pytest.raises(FileNotFoundError, match=r"no model file.*experiments export"):
        models.load(tmp_path / "nothing.safetensors")
    (tmp_path / "text.safetensors").write_text("no tensors")
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    (tmp_path / "half.safetensors").write_bytes(path.read_bytes()[:-1000])
    for name in ("text", "other", "half"):
        with pytest.raises(ValueError, match=r"is no model file of dmlrepro.*experiments export"):
            models.load(tmp_path / f"{name}.safetensors")
    with pytest.raises(ValueError, match=r"ends in \.safetensors"):
        models.export(run, tmp_path / "model.pth")


@pytest.mark.parametrize(
    "name, wrong, message", [("form", 2, "of form 2"), ("channels", 3, "takes its images otherwise")]
)
def test_a_file_of_another_version_is_refused(exported, tmp_path, name, wrong, message):
    from safetensors import safe_open

    with safe_open(exported[1], "pt") as file:
        about = json.loads(file.metadata()[models.ABOUT]) | {name: wrong}
        weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    save_file(weights, tmp_path / "changed.safetensors", metadata={models.ABOUT: json.dumps(about)})
    with pytest.raises(ValueError, match=message):
        models.load(tmp_path / "changed.safetensors")
