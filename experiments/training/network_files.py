"""A trained network as one safetensors file: the weights, and in the header how it takes images.

Notebook 01 writes such a file, `examples/search_images.py` searches a folder with it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as as_bytes
from torch import Tensor

from experiments.datasets import images
from experiments.files import atomic_write
from experiments.networks import backbones
from experiments.training import batches, inference
from experiments.training.device import device_for_training
from experiments.training.runs import RunResult

ABOUT = "dmlrepro"  # the entry of the header


class SavedNetwork(NamedTuple):
    """A network in evaluation mode on the device of training, and what its file says about it: `backbone`, `pooling`,
    `dim` (None: no head), `channels` (1 grey, 3 RGB), `size`, `short_side` and `test_resize` in pixels, and `run`."""

    network: backbones.EmbeddingNet
    about: dict[str, Any]


def save(run: RunResult, path: Path) -> Path:
    """Write the network of a run. ValueError: another ending than .safetensors; images neither cropped nor square."""
    if path.suffix != ".safetensors":
        raise ValueError(f"the file of a network ends in .safetensors, got {path}")
    spec, manifest, network = run.spec, batches.load_dataset(run.spec), run.network()
    height, width = (spec.image_size,) * 2 if spec.image_size else images.open_images(manifest).image_size or (0, 1)
    if height != width:
        raise ValueError(f"{run.described}: its images are not resized and not square; train with image_size")
    about = {name: getattr(spec, name) for name in ("backbone", "pooling", "test_resize")}
    about |= {"dim": spec.embedding_size, "size": height, "short_side": batches.stored_side(spec)}
    about["channels"] = 1 if isinstance(manifest.images, np.ndarray) and manifest.images.ndim == 3 else 3
    about["run"] = run.described.replace(spec.dataset, run.dataset)  # without the path of a folder
    weights = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    with atomic_write(path) as temporary:
        temporary.write_bytes(as_bytes(weights, {"format": "pt", ABOUT: json.dumps(about)}))
    return path


def load(path: Path) -> SavedNetwork:
    """The network of a file that `save` wrote; FileNotFoundError, or ValueError for one that is damaged or another."""
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})[ABOUT])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        network = backbones.build(
            about["backbone"], about["dim"], pooling=about["pooling"], in_channels=about["channels"]
        )
        network.load_state_dict(weights)
    except (SafetensorError, LookupError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is no network of notebook 01, or damaged ({error}); execute notebook 01") from error
    return SavedNetwork(network.eval().to(device_for_training()), about)


def read(path: Path, about: dict[str, Any]) -> Tensor:
    """An image file as a network takes it, uint8 (C, size, size): upright, its short side resized, the centre cut out.
    ValueError: no pixels of a known range, or far longer than wide; Pillow raises what else is wrong."""
    size, _ = images.header(str(path), own=True)
    height, width = images.with_short_side(size, about["short_side"] or min(size))
    image = images.decoded(str(path), upright=True).resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.array(image if about["channels"] == 3 else image.convert("L"))
    store = images.ImageStore(torch.from_numpy(pixels).flatten(), torch.tensor([[height, width]]), about["channels"])
    return images.test_batch(store, torch.tensor([0]), about["size"], resize=about["test_resize"])[0]


def embed(saved: SavedNetwork, batch: Sequence[Tensor]) -> np.ndarray:
    """The embeddings (B, D) of images that `read` has prepared, float32 of unit length."""
    return F.normalize(inference.embed(saved.network, [torch.stack([*batch])])).numpy()
