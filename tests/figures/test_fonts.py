"""Names of any script are legible in figures: no letter is drawn as a box."""

import warnings

import numpy as np
import pytest

from experiments.figures import fonts, images


@pytest.fixture
def installed(monkeypatch):
    """As if these were all fonts there are beside the shipped one: {family: letters}."""

    def these(**known):
        from matplotlib import font_manager

        entries = [type("Font", (), {"name": name, "fname": name}) for name in known]
        manager = type("Manager", (), {"ttflist": entries})
        read = fonts._letters
        monkeypatch.setattr(font_manager, "fontManager", manager)
        monkeypatch.setattr(fonts, "_letters", lambda path: set(map(ord, known[path])) if path in known else read(path))
        fonts._font_of.cache_clear()

    yield these
    fonts._font_of.cache_clear()


def test_a_letter_that_no_font_has_is_its_code_point(installed):
    installed()
    assert fonts.legible("鳥 é Ж") == "U+9CE5  é Ж"
    assert fonts.families(["鳥", "a"]) == [fonts.SHIPPED]


def test_a_font_of_the_machine_draws_what_the_shipped_one_lacks(installed):
    installed(Other="xyz", Kanji="鳥獣")
    assert fonts.legible("鳥 a") == "鳥 a" and fonts.families(["鳥 a", "b"]) == [fonts.SHIPPED, "Kanji"]


def test_figures_of_images_draw_no_boxes():
    pictures = [[np.zeros((8, 8), np.uint8)] * 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of each glyph that is missing
        images.samples(pictures, ["鳥と獣"]).canvas.draw()
        images.confused([[(pictures[0][0], pictures[0][1])]], [("鳥", "獣", "1 of 2")]).canvas.draw()
        images.embedding_map(np.eye(2), ["鳥", "b"]).canvas.draw()
