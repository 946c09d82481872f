"""Committed pictures of pages. What a picture shows is kept in it as a digest, so that it is drawn anew when that
changes and not because another machine draws letters otherwise."""

import base64
import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from experiments.files import atomic_write, read_json, repository_root

KEY, DPI = "drawn from", 130


class Picture(NamedTuple):
    """shows: all that is drawn, as text. png: the bytes of the file, without the digest."""

    shows: str
    png: Callable[[], bytes]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.shows.encode()).hexdigest()


def drawn(shows: str, draw: Callable[[], Figure]) -> Picture:
    """The picture of a figure."""

    def png() -> bytes:
        import matplotlib.pyplot as plt

        figure, file = draw(), io.BytesIO()
        figure.savefig(file, format="png", dpi=DPI, bbox_inches="tight")
        plt.close(figure)
        return file.getvalue()

    return Picture(shows, png)


def of_notebook(name: str, cell_id: str) -> Picture:
    """The first picture that a cell of a committed notebook shows; ValueError if there is none."""
    notebook = read_json(repository_root() / "notebooks" / f"{name}.ipynb", "take it from git, or `make notebooks`")
    outputs = [output for cell in notebook["cells"] if cell["id"] == cell_id for output in cell.get("outputs", ())]
    images = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    if not images:
        raise ValueError(f"notebook {name} has no picture in a cell {cell_id!r}, which a page shows")
    return Picture("".join(images[0]), lambda: base64.b64decode("".join(images[0])))


def is_stale(path: Path, picture: Picture) -> bool:
    """Whether a file is missing or shows something else."""
    from PIL import Image

    if not path.exists():
        return True
    with Image.open(path) as image:
        return getattr(image, "text", {}).get(KEY) != picture.digest


def write(path: Path, picture: Picture) -> None:
    """Write it with at most 256 colours and its digest."""
    from PIL import Image, PngImagePlugin

    note = PngImagePlugin.PngInfo()
    note.add_text(KEY, picture.digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        image = Image.open(io.BytesIO(picture.png())).convert("RGB").quantize(256, dither=Image.Dither.NONE)
        image.save(temporary, "PNG", optimize=True, pnginfo=note)
