"""A trained network as one file: weights, and in its header how images are prepared, what it learned and what made it.

The file is safetensors, `<name>.safetensors`; the entry ABOUT of its metadata is JSON. Beside it lies, where
`torch.export` takes the network, `<name>.pt2`, which loads with torch alone and holds the same JSON.
"""

import dataclasses
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from dmlrepro.extras import require
from experiments.datasets import images
from experiments.files import atomic_write
from experiments.networks import backbones
from experiments.training import batches, inference
from experiments.training.device import device_for_training

if TYPE_CHECKING:
    from experiments.training.runs import RunResult

ABOUT = "dmlrepro"  # the entry of the metadata
FORM = 1  # of what stands there
PT2_FILE = "about.json"  # the same in a .pt2 file
REMEDY = "make one with `python -m experiments export NOTEBOOK FILE.safetensors`"
TOLERANCE = 1e-4  # by which the vectors of the .pt2 may differ from the network's, relative to the largest number


@dataclass(frozen=True)
class Model:
    """A network in evaluation mode, on the device of training, and what its file says about it.

    about: `backbone`, `pooling`, `channels` (1 grey, 3 RGB), `head` (whether there is one) and `dim` D say what the
        network is; `size`, `short_side` and `test_resize` in pixels and `preprocess` how it takes images; `classes`
        are the names of those that it was trained on; `run`, `spec`, `dataset`, `rows` and `made` are what made it.
    """

    network: backbones.EmbeddingNet
    about: dict[str, Any]

    @property
    def dim(self) -> int:
        return self.about["dim"]

    def read(self, path: str | Path) -> Tensor:
        """An image file as the network takes it, uint8 (C, size, size): upright, its short side resized, the centre
        cut out, as the test images of its run were.

        Raises:
            ValueError: no pixels of a known range, or a line of pixels. Pillow raises what else is wrong with a file.
        """
        image = images.decoded(str(path), upright=True)
        short, long = sorted(image.size)
        if long > images.LONGEST * short:
            raise ValueError(
                f"{image.width} x {image.height} pixels: one side is more than {images.LONGEST} times the other"
            )
        if side := self.about["short_side"]:
            width, height = (side if length == short else int(side * long / short) for length in image.size)
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.array(image if self.about["channels"] == 3 else image.convert("L"))
        sizes = torch.tensor([[image.height, image.width]])
        store = images.ImageStore(torch.from_numpy(pixels).flatten(), sizes, self.about["channels"])
        return images.test_batch(store, torch.tensor([0]), self.about["size"], resize=self.about["test_resize"])[0]

    def vectors(self, batch: Tensor) -> Tensor:
        """Images that `read` has prepared, uint8 (B, C, size, size) -> embeddings (B, D) of unit length, float32; NaN
        where an embedding has no direction."""
        embeddings = inference.embed(self.network, [batch])
        norms = embeddings.norm(dim=1, keepdim=True)
        return torch.where(norms.isfinite() & (norms > 1e-12), F.normalize(embeddings, dim=1), torch.nan)


def export(run: "RunResult", path: str | Path) -> Path:
    """Write the network of a finished run to `path`, which ends in .safetensors, and the .pt2 file beside it, which is
    left out, with a line that says why, where torch cannot export the network.

    Raises:
        ValueError: another ending; a run on images that are not square and not cropped.
    """
    require("safetensors")
    from safetensors.torch import save

    path = check_name(path)
    network = run.network()
    about = _about(run, network)
    weights = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    with atomic_write(path) as temporary:
        temporary.write_bytes(save(weights, {"format": "pt", ABOUT: json.dumps(about)}))
    path.with_suffix(".pt2").unlink(missing_ok=True)  # of another network
    try:
        _export_program(network, about, path.with_suffix(".pt2"))
    except OSError:
        raise
    except Exception as error:  # torch.export and the networks that it does not take raise all kinds
        reason = " ".join(str(error).split())[:200]
        print(f"no {path.with_suffix('.pt2').name}: torch.export does not take this network ({reason})")
    return path


def check_name(path: str | Path) -> Path:
    """ValueError unless a model file may have this name."""
    if Path(path).suffix != ".safetensors":
        raise ValueError(f"a model file ends in .safetensors, got {path}")
    return Path(path)


def _about(run: "RunResult", network: backbones.EmbeddingNet) -> dict[str, Any]:
    spec, manifest = run.spec, batches.load_dataset(run.spec)
    grey = isinstance(manifest.images, np.ndarray) and manifest.images.ndim == 3
    size = spec.image_size
    if size is None:
        height, width = images.open_images(manifest).image_size or (0, 0)
        size = height
        if height != width or not size:
            raise ValueError(f"{run.described}: its images are taken as they are and not square; train with image_size")
    asked = {name: value for name, value in spec.as_dict().items() if name != "dataset"}  # may be a path; see `dataset`
    return {
        "form": FORM,
        "backbone": spec.backbone,
        "pooling": spec.pooling,
        "channels": 1 if grey else 3,
        "head": spec.embedding_size is not None,
        "dim": network.embedding_size,
        "size": size,
        "short_side": size if spec.image_size is None else batches.stored_side(spec),
        "test_resize": spec.test_resize,
        "preprocess": dataclasses.asdict(network.preprocess),
        "classes": list(manifest.class_names[: manifest.num_train_classes]) if manifest.labelled else [],
        "run": run.described.replace(spec.dataset, run.dataset),
        "dataset": run.dataset,
        "spec": asked | {"weights": run.made["weights"]},
        "rows": run.rows,
        "made": run.made,
    }


def _export_program(network: backbones.EmbeddingNet, about: dict[str, Any], path: Path) -> None:
    """The .pt2 file; AssertionError if it makes other embeddings than the network."""
    generator = torch.Generator().manual_seed(0)
    shape = (3, about["channels"], about["size"], about["size"])
    probe = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    with torch.no_grad():
        program = torch.export.export(network, (probe[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},))
        ours, theirs = network(probe), program.module()(probe)
    assert (ours - theirs).abs().max() <= TOLERANCE * ours.abs().max(), "it makes other embeddings of the same images"
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # where the code lies on this machine
    with atomic_write(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No complete tensor found")  # torch says it of any weights in channels-last
        torch.export.save(program, temporary, extra_files={PT2_FILE: json.dumps(about)})


def load(path: str | Path) -> Model:
    """The network of a model file, in evaluation mode on the device of training.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no model file, a damaged one, or one that another version of this package wrote.
    """
    require("safetensors")
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no model file {path}; {REMEDY}")
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})[ABOUT])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
    except (SafetensorError, LookupError, ValueError) as error:
        raise ValueError(f"{path} is no model file of dmlrepro ({type(error).__name__}: {error}); {REMEDY}") from error
    if about.get("form") != FORM:
        raise ValueError(f"{path} is a model file of form {about.get('form')}, this version reads {FORM}; {REMEDY}")
    head = about["dim"] if about["head"] else None
    network = backbones.build(about["backbone"], head, pooling=about["pooling"], in_channels=about["channels"])
    if json.loads(json.dumps(dataclasses.asdict(network.preprocess))) != about["preprocess"]:
        raise ValueError(
            f"{path}: {about['backbone']} takes its images otherwise here than where it was made; {REMEDY}"
        )
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"{path}: its weights are not those of {about['backbone']} here ({error})") from error
    return Model(network.eval().to(device_for_training()), about)


def lines(path: str | Path) -> str:
    """Five lines of Python that load a model: with torch alone where there is a .pt2 file, else with experiments."""
    path = Path(path)
    about = load(path).about
    program = path.with_suffix(".pt2")
    taken = f"uint8 (B, {about['channels']}, {about['size']}, {about['size']}) from 0 to 255"
    if not program.exists():
        return "\n".join(
            [
                "from experiments.deploy import models",
                f"model = models.load({str(path)!r})  # model.about says what it is",
                f"images = model.read('image.jpg')[None]  # {taken}",
                "vectors = model.vectors(images)  # of unit length",
                "similarity = vectors @ vectors.T  # cosine",
            ]
        )
    sides = f"short side {about['test_resize'] or about['short_side'] or about['size']}, centre crop {about['size']}"
    return "\n".join(
        [
            "import json, torch",
            f"about = {{{PT2_FILE!r}: ''}}",
            f"network = torch.export.load({str(program)!r}, extra_files=about).module()  # {taken}: {sides}",
            f"classes = json.loads(about[{PT2_FILE!r}])['classes']  # and all else that the file says",
            f"embed = lambda images: torch.nn.functional.normalize(network(images))  # (B, {about['dim']}) of length 1",
        ]
    )
