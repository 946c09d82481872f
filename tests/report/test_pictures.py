"""Pictures of pages are compared by what they show, not by their pixels."""

import matplotlib.pyplot as plt
import pytest
from PIL import Image

from experiments.report import pictures


def line():
    figure, axis = plt.subplots(figsize=(1, 1))
    axis.plot([0, 1], [0, 1])
    return figure


def test_a_picture_is_stale_when_it_shows_something_else_or_is_missing(tmp_path):
    path, picture = tmp_path / "new" / "line.png", pictures.drawn("0,1", line)
    assert pictures.is_stale(path, picture)
    before = plt.get_fignums()
    pictures.write(path, picture)
    assert not pictures.is_stale(path, picture) and pictures.is_stale(path, pictures.drawn("0,2", line))
    assert plt.get_fignums() == before


def test_other_pixels_are_not_stale(tmp_path):
    path = tmp_path / "line.png"
    pictures.write(path, pictures.drawn("0,1", line))
    before = Image.open(path).size
    other = pictures.drawn("0,1", lambda: plt.figure(figsize=(2, 2)))
    assert not pictures.is_stale(path, other)
    pictures.write(path, other)
    assert Image.open(path).size != before and not pictures.is_stale(path, pictures.drawn("0,1", line))


def test_a_file_without_a_digest_is_stale(tmp_path):
    path = tmp_path / "plain.png"
    Image.new("RGB", (2, 2)).save(path)
    assert pictures.is_stale(path, pictures.drawn("0,1", line))


def test_a_cell_that_shows_no_picture_is_named():
    with pytest.raises(ValueError, match="92_claims has no picture in a cell 'cell-03'"):
        pictures.of_notebook("92_claims", "cell-03")
