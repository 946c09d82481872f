"""The two embedded data sets: characters rendered with the typefaces that matplotlib ships. Nothing is downloaded.

A class is a character; its images are typefaces of that character under random affine jitter, contrast and noise.

`glyphs` train on Latin, Greek and Cyrillic letters and test on letters of scripts never seen in training: that is what
deep metric learning promises, similarity on new classes. `symbols` are to them what ImageNet is to birds: a network is
pretrained on them (networks/conv4_symbols.safetensors), so that a head or a short run on glyphs starts from something,
and nothing of glyphs has been seen. They are the punctuation, currencies, operators, arrows, shapes and few letters of
Lao that at least eight typefaces contain, in the order of the code points; every sixth is for testing.

Glyphs that render the same (A of Latin, Greek and Cyrillic; c and C after scaling) are one class, represented by the
first of them. The same means a correlation above 0.94 of the blurred, box-fitted upright renderings in some shared
typeface; a symbol looks like no glyph and no earlier symbol, 0.9. The outcome is written down in characters.json, so
that labels never depend on a rasteriser's version.
"""

import functools
import hashlib
import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SOURCES = (Path(__file__), Path(__file__).with_name("characters.json"))
SOURCE_DIGEST = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()  # a part of the cache's key
CHARACTERS = {  # of the training and of the test part of each set, one per class, in label order
    name: tuple("".join(part.values()) for part in parts.values())
    for name, parts in json.loads(SOURCES[1].read_text(encoding="utf8")).items()
}

SIZE = 32  # pixels: height and width of an image
MASTER, BOX = 64, 40  # pixels: the drawing a jittered image is sampled from, and the longer side of the glyph in it

# The jitter, tuned on a conv4: R@1 on the test classes about 20 % untrained (pooled features), 75 to 88 % trained.
ROTATION = 25.0  # degrees, up to, either way
SHEAR = 0.4  # horizontal shift per unit of height, up to, either way
SHIFT = 3.0  # pixels, up to, either way, per axis
SIZES = (20.0, 27.0)  # pixels, the longer side of the glyph
ASPECT = 1.4  # width over height changes by up to this factor, either way
CONTRAST = (0.8, 1.0)
BACKGROUND = 16.0  # grey level
NOISE = 10.0  # grey levels, the largest standard deviation

_COMPUTER_MODERN = ("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10", "cmmi10")  # these follow Unicode only within ASCII
TYPEFACES = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *_COMPUTER_MODERN,
)


@functools.cache
def _typeface(name: str) -> tuple[ImageFont.FreeTypeFont, frozenset[int]]:
    """A font, and the code points that it contains."""
    import matplotlib
    from matplotlib.ft2font import FT2Font

    path = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; reinstall matplotlib from PyPI or conda-forge")
    points = range(128) if name in _COMPUTER_MODERN else FT2Font(str(path)).get_charmap()
    # the basic layout engine is asked for, because the other one depends on whether libraqm is installed
    return ImageFont.truetype(str(path), 96, layout_engine=ImageFont.Layout.BASIC), frozenset(points)


def draw(character: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    """A character upright, scaled so that its ink fits BOX x BOX, white on black, centred in MASTER x MASTER pixels."""
    left, top, right, bottom = font.getbbox(character)
    ink = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(ink).text((-left, -top), character, fill=255, font=font)
    scale = BOX / max(ink.size)
    ink = ink.resize([max(1, round(side * scale)) for side in ink.size], Image.Resampling.BOX)
    image = Image.new("L", (MASTER, MASTER))
    image.paste(ink, ((MASTER - ink.width) // 2, (MASTER - ink.height) // 2))
    return image


def render(character: str, count: int) -> np.ndarray:
    """`count` jittered images of a character, uint8 (count, SIZE, SIZE), white on black.

    The first n images are the same for every count >= n, and do not depend on which other classes exist.
    """
    uniform = np.random.default_rng([ord(character), 0]).random((count, 9))
    noise = np.random.default_rng([ord(character), 1]).standard_normal((count, SIZE, SIZE), dtype=np.float32)
    masters = [draw(character, font) for font, points in map(_typeface, TYPEFACES) if ord(character) in points]
    images = np.empty((count, SIZE, SIZE), np.float32)
    for image, face, coefficients in zip(images, uniform[:, 0], _affine_coefficients(uniform[:, 1:7])):
        master = masters[int(face * len(masters))]
        image[:] = master.transform((SIZE, SIZE), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR)
    contrast = CONTRAST[0] + (CONTRAST[1] - CONTRAST[0]) * uniform[:, 7]
    grain = NOISE * uniform[:, 8]
    images = BACKGROUND + images * contrast[:, None, None] + noise * grain[:, None, None]
    return np.clip(np.rint(images), 0, 255).astype(np.uint8)


def _affine_coefficients(uniform: np.ndarray) -> np.ndarray:
    """Maps from output to master pixels (count, 6), as PIL wants them, from uniform numbers in [0, 1) (count, 6)."""
    angle, shear, dx, dy = (2 * uniform[:, :4] - 1).T * [[np.radians(ROTATION)], [SHEAR], [SHIFT], [SHIFT]]
    size = SIZES[0] + (SIZES[1] - SIZES[0]) * uniform[:, 4]
    aspect = ASPECT ** (2 * uniform[:, 5] - 1)
    cos, sin = np.cos(angle), np.sin(angle)
    rotation = np.array([[cos, -sin], [sin, cos]])
    stretch = np.array([[aspect**0.5, shear], [0 * shear, aspect**-0.5]]) * size / BOX
    inverse = np.linalg.inv(np.einsum("ijn,jkn->nik", rotation, stretch))
    centre = SIZE / 2 + np.stack([dx, dy], axis=1)
    offset = MASTER / 2 - np.einsum("nij,nj->ni", inverse, centre)
    return np.concatenate([inverse, offset[:, :, None]], axis=2).reshape(-1, 6)
