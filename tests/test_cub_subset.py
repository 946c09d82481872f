"""The part of CUB that most verdicts rest on, made from the whole."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.datasets import manifests
from tests.official_layouts import write_cub, write_lines

made = runpy.run_path(str(Path(__file__).parent.parent / "workflow" / "cub_subset.py"))


@pytest.fixture
def whole(tmp_path):
    folder = write_cub(tmp_path / "whole", {58: 2, 59: 2, 100: 1, 101: 2, 102: 1, 200: 1})
    write_lines(folder / "bounding_boxes.txt", [f"{n} 4.0 2.0 12.0 10.0" for n in range(1, 10)])
    return folder


def test_it_has_the_boxes_of_the_chosen_classes_and_is_read_as_a_subset(whole, tmp_path, monkeypatch):
    part = tmp_path / "birds" / "CUB_200_2011"
    assert made["cut"](whole, part) == 6
    monkeypatch.setenv("DMLREPRO_DATA", str(part.parent))
    assert [len(manifests.load("cub-subset").indices(split)) for split in ("train", "test")] == [3, 3]
    with pytest.raises(ValueError, match=r"this is 'cub-subset', ask for it by that name"):
        manifests.load("cub")
    name = next(path for path in (whole / "images").rglob("*.jpg") if path.parent.name.startswith("058"))
    with Image.open(name) as image, Image.open(part / "images" / name.relative_to(whole / "images")) as bird:
        assert bird.size == (144, 144)
        box = image.crop((4, 2, 16, 12)).resize((144, 144), Image.Resampling.BICUBIC)
        assert np.abs(np.asarray(box, float) - np.asarray(bird, float)).mean() < 3  # of 255, JPEG's


def test_nothing_is_overwritten_and_nothing_is_left_of_a_failure(whole, tmp_path):
    part = tmp_path / "birds" / "CUB_200_2011"
    next((whole / "images").rglob("Bird_0200*.jpg")).unlink()
    with pytest.raises(FileNotFoundError):
        made["cut"](whole, part)
    assert not list(part.parent.iterdir())
    part.mkdir()
    with pytest.raises(FileExistsError, match="is there already"):
        made["cut"](whole, part)
