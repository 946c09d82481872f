"""Small data sets written in the exact official file formats, for tests."""

import io
import itertools
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image


def image(seed: int, height: int = 20, width: int = 24) -> Image.Image:
    """A smooth RGB pattern that depends on the seed and survives JPEG."""
    phase = np.random.default_rng(seed).random((3, 2)) * 6
    y, x = np.mgrid[:height, :width] / 8
    return Image.fromarray(np.stack([127 + 120 * np.sin(x + a) * np.cos(y + b) for a, b in phase], 2).astype(np.uint8))


def save_images(paths: list[Path]) -> None:
    for seed, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        image(seed, 20 + seed % 3, 24).save(path, quality=95)


def write_cub(root: Path, sizes: dict[int, int]) -> Path:
    """CUB_200_2011 with sizes[class id] images of each class."""
    folder = root / "CUB_200_2011"
    names = {number: f"{number:03d}.Bird_{number}" for number in sizes}
    files = [
        (number, f"{names[number]}/Bird_{number:04d}_{k:07d}.jpg") for number in sizes for k in range(sizes[number])
    ]
    save_images([folder / "images" / path for _, path in files])
    write_lines(folder / "classes.txt", [f"{number} {name}" for number, name in names.items()])
    write_lines(folder / "images.txt", [f"{n} {path}" for n, (_, path) in enumerate(files, 1)])
    write_lines(folder / "image_class_labels.txt", [f"{n} {number}" for n, (number, _) in enumerate(files, 1)])
    return folder


def write_cars(root: Path, sizes: dict[int, int]) -> Path:
    """Cars196 with a 1 x N struct array `annotations` and a 1 x C cell array `class_names`."""
    from scipy.io import savemat

    folder = root / "Cars196"
    ids = [number for number in sizes for _ in range(sizes[number])]
    paths = [f"car_ims/{n:06d}.jpg" for n in range(1, len(ids) + 1)]
    save_images([folder / path for path in paths])
    rows = np.empty((1, len(ids)), [(name, object) for name in ("relative_im_path", "bbox_x1", "class", "test")])
    rows[0] = [(path, 1, number, n % 2) for n, (path, number) in enumerate(zip(paths, ids))]
    savemat(folder / "cars_annos.mat", {"annotations": rows, "class_names": car_names(max(sizes))})
    return folder


def write_cars_by_class(root: Path, sizes: dict[int, int]) -> Path:
    """pytorch-metric-learning's copy: names.csv, anno_{train,test}.csv, car_data/car_data/{train,test}/<class>/."""
    folder = root / "Cars196"
    names = car_names(max(sizes))[0].tolist()
    write_lines(folder / "names.csv", names)
    ids = [number for number in sizes for _ in range(sizes[number])]
    for start, part in enumerate(("train", "test")):
        lines = [f"{n:05d}.jpg,39,116,569,375,{number}" for n, number in enumerate(ids[start::2], 1)]
        write_lines(folder / f"anno_{part}.csv", lines)
        rows = [line.split(",") for line in lines]
        place = folder / "car_data" / "car_data" / part
        save_images([place / names[int(row[-1]) - 1].replace("/", "-") / row[0] for row in rows])
    return folder


def car_names(count: int) -> np.ndarray:
    """A 1 x C cell array; as in the real list, one name has a slash."""
    names = np.empty((1, count), object)
    names[0] = [f"Make {'C/V' if number == 2 else 'Model'} {number}" for number in range(1, count + 1)]
    return names


def write_sop(root: Path, train: dict[int, int], test: dict[int, int]) -> Path:
    folder = root / "Stanford_Online_Products"
    ids = itertools.count(1)
    for part, sizes in (("train", train), ("test", test)):
        lines = ["image_id class_id super_class_id path"]
        for number, size in sizes.items():
            for k in range(size):
                lines.append(f"{next(ids)} {number} {1 + number % 12} chair_final/{number:012d}_{k}.JPG")
        write_lines(folder / f"Ebay_{part}.txt", lines)
        save_images([folder / line.split()[3] for line in lines[1:]])
    return folder


def write_inshop(root: Path, items: dict[int, dict[str, int]]) -> Path:
    """InShop with Eval/list_eval_partition.txt; items[item id][status] is a number of images."""
    folder = root / "InShop"
    entries = []
    for item, parts in items.items():
        statuses = [status for status, size in parts.items() for _ in range(size)]
        for k, status in enumerate(statuses, 1):
            entries.append((f"img/WOMEN/Dresses/id_{item:08d}/{k:02d}_1_front.jpg", f"id_{item:08d}", status))
    save_images([folder / "Img" / path for path, _, _ in entries])
    lines = [str(len(entries)), "image_name item_id evaluation_status"]
    lines += [f"{path:<80} {item:<12} {status}" for path, item, status in entries]
    write_lines(folder / "Eval" / "list_eval_partition.txt", lines)
    return folder


def write_omniglot(root: Path, background: dict[str, int], evaluation: dict[str, int], drawers: int = 4) -> Path:
    """omniglot with the two official zips of 105 x 105 one-bit PNGs; characters per alphabet."""
    folder = root / "omniglot"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = itertools.count(1)
    for part, alphabets in (("images_background", background), ("images_evaluation", evaluation)):
        with zipfile.ZipFile(folder / f"{part}.zip", "w") as archive:
            archive.writestr(f"{part}/", "")
            for alphabet, characters in alphabets.items():
                for character, number in zip(range(1, characters + 1), drawn):
                    for drawer in range(1, drawers + 1):
                        name = f"{part}/{alphabet}/character{character:02d}/{number:04d}_{drawer:02d}.png"
                        archive.writestr(name, drawing(number, drawer))
    return folder


def drawing(number: int, drawer: int) -> bytes:
    pixels = np.full((105, 105), 255, np.uint8)
    start = 5 + 10 * (number % 5)
    pixels[start : start + 30 + drawer, start : start + 30 + drawer] = 0
    data = io.BytesIO()
    Image.fromarray(pixels).convert("1").save(data, "PNG")
    return data.getvalue()


def write_mnist(root: Path, train: list[int], test: list[int]) -> Path:
    """MNIST/raw with the four IDX files; every image shows its label as a grey level."""
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, labels in (("train", train), ("t10k", test)):
        levels = np.array(labels, np.uint8)
        images = np.broadcast_to(25 * levels[:, None, None], (len(labels), 28, 28))
        for name, array in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", levels)):
            header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            (folder / name).write_bytes(header + array.tobytes())
    return folder


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
