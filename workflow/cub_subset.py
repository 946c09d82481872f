"""Make cub-subset, on which most verdicts rest, from the whole of CUB-200-2011: after
`python -m experiments data fetch cub` run `python workflow/cub_subset.py FOLDER`, then `export DMLREPRO_DATA=FOLDER`.

All images of 85 of the classes to train with and of 42 of those to test, cut to the bird's box and brought to 144 x 144
pixels. The copy behind results/ has the same classes and boxes, but other file names, and its resampling and JPEG
quality are not known: those here are a choice. Runs on yours have keys of their own, and how far their scores lie from
those in results/ has not been measured.
"""

import sys
from pathlib import Path

from PIL import Image

from experiments.files import data_root, temporary_folder

LEFT_OUT = {59, 62, 64, 65, 66, 71, 72, 74, 76, 78, 82, 84, 91, 92, 99}  # of 1 to 100, the classes to train with
TEST = {101, 105, 106, 109, 110, 114, 120, 123, 124, 132, 134, 136, 138, 139, 140, 151, 152, 158, 159, 163, 164}
TEST |= {165, 166, 169, 170, 172, 176, 180, 181, 184, 185, 186, 187, 188, 189, 190, 191, 192, 194, 195, 198, 200}
CLASSES = set(range(1, 101)) - LEFT_OUT | TEST
SIDE, QUALITY = 144, 88


def cut(whole: Path, part: Path) -> int:
    """Write the subset of a folder CUB_200_2011 to another, as a whole or not at all; returns how many images it has.

    Raises:
        FileNotFoundError: a list or an image of the whole set is missing.
        FileExistsError: there is something at `part`.
    """
    if part.exists():
        raise FileExistsError(f"{part} is there already; name another folder, or delete it")
    names, labels, boxes = (_rows(whole / f"{name}.txt") for name in ("images", "image_class_labels", "bounding_boxes"))
    chosen = [number for number in names if int(labels[number][0]) in CLASSES]
    with temporary_folder(part.parent) as made:
        folder = made / part.name
        for number in chosen:
            (name,), (left, top, width, height) = names[number], map(float, boxes[number])
            place = folder / "images" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            with Image.open(whole / "images" / name) as image:
                bird = image.convert("RGB").crop((left, top, left + width, top + height))
                bird.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(place, quality=QUALITY)
        for name in ("images", "image_class_labels"):
            rows = _rows(whole / f"{name}.txt")
            lines = [f"{new} {rows[number][0]}\n" for new, number in enumerate(chosen, 1)]
            (folder / f"{name}.txt").write_text("".join(lines), encoding="utf8")
        of_classes = _rows(whole / "classes.txt")
        lines = [f"{number} {name}\n" for number, (name,) in of_classes.items() if int(number) in CLASSES]
        (folder / "classes.txt").write_text("".join(lines), encoding="utf8")
        folder.rename(part)
    return len(chosen)


def _rows(path: Path) -> dict[str, list[str]]:
    """The rows of a list of CUB by their numbers."""
    lines = path.read_text(encoding="utf8").splitlines()
    return {number: values for number, *values in map(str.split, lines)}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python workflow/cub_subset.py FOLDER, in which CUB_200_2011 with the subset is made")
    target = Path(sys.argv[1]) / "CUB_200_2011"
    print(f"{target}: {cut(data_root() / 'CUB_200_2011', target):,} images")
