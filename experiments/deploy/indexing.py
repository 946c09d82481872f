"""A folder of images as an index: the vector of every image that can be read, in a folder of its own.

    index.json         the model's sha256, the folder, and once all is there the checksums of the next two
    vectors.npy        (N, D) float32, unit length
    images.csv         path from the folder, label (the folder that the image lies in), bytes and time of the file
    unreadable.txt     files that are called images and could not be embedded, with the reason
    model.safetensors  the model, so that queries need nothing else
    index.faiss        the vectors for other programs, inner product, where faiss is installed

Vectors are appended to a file as they are made, a row for every listed image, so that a killed process is gone on from
where it was; an index that is there takes over the vectors of images that have not changed.
"""

import csv
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments import progress
from experiments.datasets.layouts import few
from experiments.deploy import embedding, models
from experiments.deploy.folders import Image, listed
from experiments.files import atomic_write, read_json, sha256, write_text

ROWS = 2**14  # of the finished vectors that are copied at once
PART, ASKED = "vectors.part", "asked.part"  # the vectors so far, and a digest of the images that they are of
COLUMNS = ("path", "label", "bytes", "changed")


@dataclass(frozen=True)
class Index:
    """An index that is complete.

    place: its folder; folder: that of the images, in which `images` lie; vectors: (N, D) float32 mapped into memory.
    """

    place: Path
    folder: Path
    images: list[Image]
    vectors: np.ndarray
    unreadable: int

    def model(self) -> models.Model:
        return models.load(self.place / "model.safetensors")


def embed_folder(
    model_file: str | Path, folder: str | Path, place: str | Path, batch_size: int = embedding.BATCH
) -> Index:
    """Embed every image of a folder into the index at `place`, going on with what is there; of two processes at once
    the second waits for the first. Memory is that of a batch, and with faiss once that of all vectors.

    Raises:
        ValueError: no images, none that can be read, a file that is no model; `place` holds something else, or an
            index of another folder or model.
    """
    model, folder, place = models.load(model_file), Path(folder).resolve(), Path(place)
    images, unnamed = listed(folder)
    begun = {"form": models.FORM, "folder": str(folder), "model": sha256(Path(model_file)), "dim": model.dim}
    if place.exists() and not _is_ours(place):
        raise ValueError(f"{place} exists and is no index; give --out a new folder")
    place.mkdir(parents=True, exist_ok=True)
    with _alone_in(place):
        if (place / "index.json").exists():
            known = _about(place)
            for name, what in (("model", "another model"), ("folder", f"another folder, {known.get('folder')}")):
                if known.get(name) != begun[name]:
                    raise ValueError(f"{place} is an index of {what}; give --out a new folder, or remove this one")
        else:
            write_text(place / "index.json", json.dumps(begun, indent=1) + "\n")
        if not (place / "model.safetensors").exists():
            with atomic_write(place / "model.safetensors") as temporary:
                shutil.copyfile(model_file, temporary)
        content = json.dumps([begun, images, unnamed]).encode()
        asked = hashlib.sha256(content).hexdigest()
        if _about(place).get("asked") != asked:
            _append(place, model, folder, images, asked, batch_size)
            _finish(place, model, folder, images, unnamed, begun | {"asked": asked})
    return open_index(place)


def open_index(place: str | Path) -> Index:
    """The index in a folder.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is not finished, or damaged.
    """
    place = Path(place)
    if not (place / "index.json").is_file():
        raise FileNotFoundError(
            f"no index in {place}; make one with `python -m experiments embed MODEL FOLDER --out {place}`"
        )
    about = _about(place)
    if "sums" not in about:
        raise ValueError(f"{place} is not finished; the same `python -m experiments embed` again goes on with it")
    for name, known in about["sums"].items():
        if not (place / name).is_file() or sha256(place / name) != known:
            raise ValueError(f"{place / name} is not as it was made; remove {place} and embed the folder again")
    with (place / "images.csv").open(newline="", encoding="utf8") as file:
        images = [Image(row["path"], int(row["bytes"]), int(row["changed"])) for row in csv.DictReader(file)]
    vectors = np.asarray(np.load(place / "vectors.npy", mmap_mode="r"))  # faiss's torch_utils take no subclass
    return Index(place, Path(about["folder"]), images, vectors, about["unreadable"])


def _about(place: Path) -> dict:
    return read_json(place / "index.json", f"remove {place} and embed the folder again")


def _is_ours(place: Path) -> bool:
    """Whether there is an index, however far it is, or an empty folder."""
    return place.is_dir() and ((place / "index.json").exists() or all(e.name.startswith(".") for e in place.iterdir()))


@contextmanager
def _alone_in(place: Path) -> Iterator[None]:
    """No two processes write into an index at a time; one that is killed leaves it."""
    handle = os.open(place, os.O_RDONLY)
    try:
        with suppress(OSError):  # this file system has no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _append(place: Path, model: models.Model, folder: Path, images: list[Image], asked: str, batch_size: int) -> None:
    """Bring the rows of PART to the number of the images; NaN stands for what cannot be embedded."""
    part, width = place / PART, 4 * model.dim
    if not (part.exists() and (place / ASKED).exists() and (place / ASKED).read_text() == asked):
        part.unlink(missing_ok=True)
        write_text(place / ASKED, asked)
    rows, vectors = _known(place)
    with part.open("ab") as file:
        done = file.tell() // width
        file.truncate(done * width)
        report = progress.reporter("images embedded", len(images), done)
        chunks = [images[first : first + batch_size] for first in range(done, len(images), batch_size)]
        paths = ([None if image in rows else folder / image.path for image in chunk] for chunk in chunks)
        for chunk, made in zip(chunks, embedding.embedded(model, paths)):
            for row, image in enumerate(chunk):
                if image in rows:
                    made[row] = vectors[rows[image]]
            file.write(made.tobytes())
            file.flush()
            os.fsync(file.fileno())
            done += len(chunk)
            report(done)


def _known(place: Path) -> tuple[dict[Image, int], np.ndarray]:
    """The images of an index that is complete, by their rows, and its vectors."""
    try:
        index = open_index(place)
    except ValueError:
        return {}, np.empty((0, 0))
    return {image: row for row, image in enumerate(index.images)}, index.vectors


def _finish(
    place: Path, model: models.Model, folder: Path, images: list[Image], unnamed: list[str], about: dict
) -> None:
    """Make the files of the index of the rows of PART."""
    rows = np.memmap(place / PART, np.float32, "r", shape=(len(images), model.dim))
    parts = range(0, len(images), ROWS)
    good = np.concatenate([~np.isnan(rows[first : first + ROWS, 0]) for first in parts])
    bad = [
        f"{image.path}\t{embedding.reason(model, folder / image.path)}" for image, fine in zip(images, good) if not fine
    ]
    bad += [f"{path}\tits name is no UTF-8 text of one line" for path in unnamed]
    if not good.any():
        (place / PART).unlink()
        raise ValueError(f"{folder}: none of its {len(images)} images can be read: {few(bad)}")
    write_text(place / "index.json", json.dumps({key: about[key] for key in about if key != "asked"}, indent=1) + "\n")
    with atomic_write(place / "vectors.npy") as temporary, temporary.open("wb") as file:
        form = {"descr": "<f4", "fortran_order": False, "shape": (int(good.sum()), model.dim)}
        np.lib.format.write_array_header_1_0(file, form)
        for first in parts:
            file.write(rows[first : first + ROWS][good[first : first + ROWS]].tobytes())
    with atomic_write(place / "images.csv") as temporary, temporary.open("w", newline="", encoding="utf8") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        table.writerows(
            (image.path, image.label, image.bytes, image.changed) for image, fine in zip(images, good) if fine
        )
    write_text(place / "unreadable.txt", "".join(f"{line}\n" for line in bad))
    _write_faiss(place)
    sums = {name: sha256(place / name) for name in ("vectors.npy", "images.csv")}
    complete = about | {"images": int(good.sum()), "unreadable": len(bad), "sums": sums}
    write_text(place / "index.json", json.dumps(complete, indent=1) + "\n")
    for name in (PART, ASKED):
        (place / name).unlink()


def _write_faiss(place: Path) -> None:
    (place / "index.faiss").unlink(missing_ok=True)  # of other vectors
    if importlib.util.find_spec("faiss") is None:
        return
    import faiss

    vectors = np.asarray(np.load(place / "vectors.npy", mmap_mode="r"))  # faiss's torch_utils take no subclass
    index = faiss.IndexFlatIP(vectors.shape[1])
    for first in range(0, len(vectors), ROWS):
        index.add(np.ascontiguousarray(vectors[first : first + ROWS]))
    with atomic_write(place / "index.faiss") as temporary:
        faiss.write_index(index, str(temporary))
