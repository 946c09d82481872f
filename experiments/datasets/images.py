"""From a manifest to uint8 image batches: decode once, then crop, flip and resize straight from memory-mapped pixels.

Batches are on the CPU; scaling, normalising and the colour order belong to the backbone. All random numbers of a batch
are drawn from the caller's generator before any image is touched.

Files of any mode become RGB: of several frames the first one, 16 bits cut to the upper 8, transparency over white.
Pixels without a fixed range (floats, 32-bit or signed integers) and images more than LONGEST times as long as wide are
refused by name. The reader's own photographs are turned upright as their EXIF orientation says; official sets are
decoded as stored, which is how published numbers were made.
"""

import math
import os
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import ExifTags, Image, ImageOps
from torch import Tensor
from tqdm import tqdm

from experiments.datasets.layouts import few
from experiments.datasets.manifests import Manifest, is_own
from experiments.files import cache_root, kept_folder, sha256

CROP_ATTEMPTS = 10  # as many as torchvision's RandomResizedCrop makes
RATIO = (3 / 4, 4 / 3)  # width over height of a crop
LONGEST = 50  # times the short side: a line of 1 x 10,000 pixels, enlarged to a usable height, would fill the disk


class ImageStore:
    """Images in one flat uint8 tensor, height x width x channels each; `store[i]` is a view (C, H, W). sizes: int64
    (N, 2), heights and widths; channels: 1 (grey) or 3; image_size: (height, width) if all images have it, else None.
    """

    def __init__(self, pixels: Tensor, sizes: Tensor, channels: int):
        lengths = sizes.prod(1) * channels
        self.pixels, self.sizes, self.channels = pixels, sizes, channels
        self.offsets = (lengths.cumsum(0) - lengths).tolist()
        self.image_size = tuple(sizes[0].tolist()) if (sizes == sizes[0]).all() else None

    def __getitem__(self, index: int) -> Tensor:
        height, width = self.sizes[index].tolist()
        start = self.offsets[index]
        image = self.pixels[start : start + height * width * self.channels]
        return image.view(height, width, self.channels).permute(2, 0, 1)


def open_images(manifest: Manifest, short_side: int | None = None) -> ImageStore:
    """All images of a manifest, ready for batches.

    Arrays stay in memory. Files are decoded once, in minutes, into a memory-mapped cache below `cache_root()` of three
    bytes per pixel: about 3 GB for CUB at short_side 256, 25 to 30 GB for SOP.

    short_side: pixels of the shorter side after an antialiased bilinear resize; None: no resize.
    Raises ValueError on files that are no readable images (how many, and the first few), OSError on too full a disk.
    """
    if isinstance(manifest.images, tuple):
        # uncompressed files in two of the reader's folders may agree in names and sizes; the folders' names differ
        files = manifest.name if is_own(manifest.name) else manifest.images_digest[:16]
        place = cache_root() / "images" / f"{files}-{short_side or 'original'}"
        folder = kept_folder(place, partial(_decode_files, manifest, short_side))
        with warnings.catch_warnings():  # read-only memory is what we want; nothing here writes to a store
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            pixels = torch.from_numpy(np.memmap(folder / "pixels", np.uint8, "r"))
        return ImageStore(pixels, torch.from_numpy(np.load(folder / "sizes.npy")), 3)
    images = torch.from_numpy(np.require(manifest.images, requirements=["C", "W"]))
    images = (images.unsqueeze(-1) if images.ndim == 3 else images).permute(0, 3, 1, 2)
    if short_side:
        images = _resize(images, with_short_side(images.shape[2:], short_side))
    count, channels, height, width = images.shape
    pixels = images.permute(0, 2, 3, 1).reshape(-1)
    return ImageStore(pixels, torch.tensor([[height, width]]).expand(count, 2), channels)


def train_batch(
    store: ImageStore,
    indices: Tensor,
    size: int,
    generator: torch.Generator,
    *,
    scale: tuple[float, float] = (0.16, 1.0),
    rows: slice = slice(None),
) -> Tensor:
    """Random resized crops, each mirrored with probability 1/2: uint8 (B, C, size, size).

    scale bounds the area of a crop (fraction of the image); its width over height is log-uniform within RATIO, as in
    torchvision's RandomResizedCrop. The default is that of Musgrave et al. 2020. rows selects a part of the batch: only
    that is made, with the pixels it would have in the whole batch.
    """
    indices = torch.as_tensor(indices)
    boxes = random_boxes(store.sizes[indices], generator, scale)[rows].tolist()
    mirrored = (torch.rand(len(indices), generator=generator) < 0.5)[rows].tolist()
    indices = indices[rows]
    batch = _empty(store, len(indices), size)
    for out, index, (top, left, height, width), turned in zip(batch, indices.tolist(), boxes, mirrored):
        crop = store[index][None, :, top : top + height, left : left + width]
        # the kernel is twice as fast where pixels lie together, and a picture mirrors faster than a batch
        crop = _resize(crop.contiguous(memory_format=torch.channels_last), (size, size))[0]
        out.copy_(crop.flip(-1) if turned else crop)
    return batch


def test_batch(store: ImageStore, indices: Tensor, size: int, *, resize: int | None = None) -> Tensor:
    """Centre crops: uint8 (B, C, size, size); resize: pixels of the shorter side before the crop, at least size; None
    takes images as stored, enlarging those smaller than size."""
    batch = _empty(store, len(indices), size)
    for out, index in zip(batch, torch.as_tensor(indices).tolist()):
        image = store[index]
        sides = image.shape[1:]
        image = _resize(image[None], with_short_side(sides, resize or max(size, min(sides))))[0]
        top, left = (round((side - size) / 2) for side in image.shape[1:])
        out.copy_(image[:, top : top + size, left : left + size])
    return batch


def plain_batch(store: ImageStore, indices: Tensor) -> Tensor:
    """Images of equal size, unchanged: uint8 (B, C, H, W)."""
    indices = torch.as_tensor(indices)
    if store.image_size is None:
        raise ValueError("plain_batch needs a set whose images have one size; train_batch and test_batch crop")
    return store.pixels.view(-1, *store.image_size, store.channels).index_select(0, indices).permute(0, 3, 1, 2)


def check(manifest: Manifest) -> str:
    """Decode every image file and keep nothing; ValueError lists those that are damaged, which a header may hide.
    Returns modes and sizes."""

    def looked_at(path: str) -> tuple[tuple[int, int], str]:
        decoded(path, upright=False)
        return header(path, own=is_own(manifest.name))

    sizes, modes = zip(*_all_read(manifest, looked_at))
    _refuse_shared(manifest)
    counts = ", ".join(f"{count} {mode}" for mode, count in Counter(modes).most_common())
    short, long = zip(*map(sorted, sizes))
    return f"image files: {counts}; short side {min(short)}..{max(short)} pixels, long side {min(long)}..{max(long)}"


def decoded(path: str, *, upright: bool) -> Image.Image:
    """An image file in RGB; upright: turned as its EXIF orientation says. Raises ValueError for pixels whose range a
    file does not tell, and whatever Pillow raises."""
    with Image.open(path) as image:
        image.load()
        of_tiff = image.format == "TIFF"
        if upright and _orientation(image) != 1:
            image = ImageOps.exif_transpose(image)
        if image.mode.startswith(("I", "F")):
            levels = np.asarray(image)
            unbounded = image.mode == "F" or (image.mode == "I" and of_tiff)  # other formats scale to 16
            if unbounded or levels.min() < 0 or levels.max() > 65535:
                raise ValueError("32-bit and signed pixels have no fixed range; convert them to 8 or 16 bits")
            image = Image.fromarray((levels >> 8).astype(np.uint8))
        elif "A" in image.mode or "a" in image.mode or "transparency" in image.info:
            layers = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers)
        return image.convert("RGB")


def random_boxes(sizes: Tensor, generator: torch.Generator, scale: tuple, ratio: tuple = RATIO) -> Tensor:
    """Inception-style crops (B, 4) int64: top, left, height, width, for images of sizes (B, 2).

    Of ten proposals per image the first that fits counts; if none does, the largest central box within the bounds.
    """
    (smallest, largest), (narrow, wide) = scale, ratio
    uniform = torch.rand(len(sizes), CROP_ATTEMPTS + 1, 2, generator=generator, dtype=torch.float64)
    image_height, image_width = sizes.double().unsqueeze(2).unbind(1)
    area = image_height * image_width * (smallest + (largest - smallest) * uniform[:, :-1, 0])
    aspect = torch.exp(math.log(narrow) + math.log(wide / narrow) * uniform[:, :-1, 1])
    width, height = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (width > 0) & (width <= image_width) & (height > 0) & (height <= image_height)
    first = fits.int().argmax(1, keepdim=True)
    proposed = torch.cat([height.gather(1, first), width.gather(1, first)], dim=1)
    whole = torch.cat([image_height, image_width], dim=1)
    limits = torch.cat([image_width / narrow, image_height * wide], dim=1).round()
    any_fits = fits.any(1, keepdim=True)
    box = torch.where(any_fits, proposed, torch.minimum(whole, limits).clamp(min=1))
    position = torch.where(any_fits, (uniform[:, -1] * (whole - box + 1)).floor(), ((whole - box) / 2).floor())
    return torch.cat([position, box], dim=1).long()


def _empty(store: ImageStore, count: int, size: int) -> Tensor:
    return torch.empty(count, store.channels, size, size, dtype=torch.uint8, memory_format=torch.channels_last)


def _resize(images: Tensor, size: tuple[int, ...]) -> Tensor:
    """uint8 (B, C, H, W) to (B, C, *size); the uint8 kernel is several times faster than going through float."""
    if images.shape[2:] == size:
        return images
    return F.interpolate(images, size, mode="bilinear", antialias=True)


def with_short_side(size: Sequence[int], short_side: int) -> tuple[int, ...]:
    return tuple(int(short_side * side / min(size)) for side in size)


def _decode_files(manifest: Manifest, short_side: int | None, folder: Path) -> None:
    own = is_own(manifest.name)
    sides = [size for size, _ in _all_read(manifest, partial(header, own=own))]
    _refuse_shared(manifest)
    if short_side:
        sides = [with_short_side(size, short_side) for size in sides]
    sizes = np.array(sides, np.int64)
    ends = (sizes.prod(1) * 3).cumsum()
    needed, free = int(ends[-1]), shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(
            f"{cache_root()}: the decoded images of {manifest.name} need {needed / 1e9:.1f} GB and "
            f"{free / 1e9:.1f} GB are free; point DMLREPRO_CACHE to a larger disk"
        )
    np.save(folder / "sizes.npy", sizes)
    pixels = np.memmap(folder / "pixels", np.uint8, "w+", shape=(needed,))

    def decode(path: str, size: np.ndarray, end: int) -> None:
        height, width = size.tolist()
        image = decoded(path, upright=own).resize((width, height), Image.Resampling.BILINEAR)
        pixels[end - 3 * height * width : end] = np.asarray(image).ravel()

    _all_read(manifest, decode, sizes, ends)
    pixels.flush()


def _all_read(manifest: Manifest, read: Callable, *others: np.ndarray) -> list:
    """read(path, ...) for all files, in order; ValueError lists the first few that could not be read."""
    bad = []

    def attempt(path: str, *arguments: object):
        try:
            return read(path, *arguments)
        except Exception as error:  # Pillow lets through whatever its readers stumble over in a damaged file
            reason = str(error).replace(repr(path), "").strip() or type(error).__name__
            bad.append(f"{path} ({reason})")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tasks = pool.map(attempt, manifest.images, *others)
        results = [*tqdm(tasks, f"reading {manifest.name}", len(manifest), unit=" images", disable=None)]
    if bad:
        told = f"{len(bad)} of {len(manifest)} files are no readable images: {few(sorted(bad))}"
        raise ValueError(f"{told}; convert or remove them")
    return results


def _refuse_shared(manifest: Manifest) -> None:
    """ValueError where one of the reader's files lies under a training and a test class, as a link or as a copy."""
    if not is_own(manifest.name):
        return
    contents = _all_read(manifest, lambda path: sha256(Path(path)))
    files = list(zip(contents, manifest.images, manifest.split))
    trained = {content: path for content, path, split in files if split == "train"}
    if shared := [f"{path} = {trained[key]}" for key, path, split in files if split == "test" and key in trained]:
        raise ValueError(
            f"{len(shared)} files of test classes are training images too: {few(sorted(shared))}; remove one of each "
            "pair, or give both the same class"
        )


def header(path: str, own: bool) -> tuple[tuple[int, int], str]:
    """(height, width) as decoded and the mode of an image file; only the header is read."""
    with Image.open(path) as image:
        height, width = image.height, image.width
        if max(height, width) > LONGEST * min(height, width):
            raise ValueError(f"{width} x {height} pixels: one side is more than {LONGEST} times the other")
        if own and _orientation(image) in (5, 6, 7, 8):
            height, width = width, height
        return (height, width), image.mode


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8, that is still to be applied; 1 is upright."""
    if image.format == "TIFF":  # Pillow turns these itself
        return 1
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF data do not make a photograph unreadable
        return 1
