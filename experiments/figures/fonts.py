"""Names in any script. matplotlib's own fonts lack most scripts, and draw a box for each letter that they do not have:
what they lack is taken from a font of this machine, and what none has is written as its code point."""

import functools
from collections.abc import Iterable

SHIPPED = "DejaVu Sans"  # with matplotlib


def legible(name: str) -> str:
    """A name of which every letter can be drawn: "鳥" is "U+9CE5 " where no font has it."""
    return "".join(letter if _font_of(letter) else f"U+{ord(letter):04X} " for letter in name).rstrip()


def families(names: Iterable[str]) -> list[str]:
    """The fonts that names need, the shipped one first, as `fontfamily` of a text takes them."""
    fonts = dict.fromkeys(font for name in names for letter in name if (font := _font_of(letter)))
    return list(dict.fromkeys([SHIPPED, *fonts]))


@functools.cache
def _font_of(letter: str) -> str:
    """The first family that has a letter, the shipped one before all others; "" if none has."""
    from matplotlib import font_manager

    if letter.isspace() or ord(letter) in _letters(font_manager.findfont(SHIPPED)):
        return SHIPPED
    fonts = ((font.name, font.fname) for font in font_manager.fontManager.ttflist)
    others = sorted((name, path) for name, path in fonts if "Last Resort" not in name)  # it has boxes for everything
    return next((name for name, path in others if ord(letter) in _letters(path)), "")


@functools.cache
def _letters(path: str) -> frozenset[int]:
    from matplotlib import ft2font

    try:
        return frozenset(ft2font.FT2Font(path).get_charmap())
    except (OSError, RuntimeError, ValueError):  # a font that FreeType does not read
        return frozenset()
