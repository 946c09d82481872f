"""The key of a run: a digest of everything its numbers depend on.

That is the spec, the images, the first weights and the bytes of the code that trains: what is trained; and the versions
of the numerical packages, the kind of device and of machine, and the threads: where. The key is that of the local
cache; in the store a run goes by its name, which knows neither code nor machine, see records.py.
"""

import functools
import hashlib
import platform
from collections.abc import Callable
from typing import Any

import torch

from experiments.datasets import manifests
from experiments.files import data_root, repository_root
from experiments.networks import backbones
from experiments.training import records, sources
from experiments.training.device import device_for_training, threads
from experiments.training.spec import RunSpec


def key_of(spec: RunSpec) -> str:
    return of_identity(identity_of(spec))


def of_identity(identity: dict[str, dict]) -> str:
    """The key of a run: 24 hex digits for what is trained and 8 for the machine it is trained on."""
    return f"{records.digest(identity['what'])[:24]}-{records.digest(identity['where'])[:8]}"


def identity_of(spec: RunSpec, digests: Callable[[str, float, int, int | None], str] | None = None) -> dict[str, dict]:
    """All that the key of a run is made of: `what` is trained, and `where`.

    digests: a cached `digest_of_data` for many runs at a time; the reader's own images are read anew without one.
    """
    # what is not asked for is left out, so that a field added later leaves the keys of runs that do not use it
    asked = {name: value for name, value in spec.as_dict().items() if name != "threads" and is_asked(value)}
    data = spec.dataset, spec.label_noise, spec.seed if spec.label_noise else 0, spec.images_per_class
    if manifests.is_own(spec.dataset):
        del asked["dataset"]  # a folder has many spellings; the name and content of its images are the data's digest
        images = (digests or digest_of_data)(*data)
    else:
        images = _kept_digest_of_data(data_root(), *data)
    what = {
        "spec": asked,
        "data": images,
        "weights": digest_of_weights(spec.backbone, spec.weights),
        "code": sources.bytes_hash(sources.TRAINING),
    }
    where = {
        "versions": sources.versions(),
        "device": device_for_training().type,
        "machine": platform.machine(),
        # a GPU's results do not depend on the threads beside it, whose default differs between processes
        "threads": spec.threads or (0 if torch.cuda.is_available() else torch.get_num_threads()),
    }
    return {"what": what, "where": where}


def is_asked(value: object) -> bool:
    return value not in (None, {}, ()) and value is not False  # but 0 is something: a fold, a seed


def digest_of_data(dataset: str, label_noise: float, seed: int, images_per_class: int | None) -> str:
    """Name and content of the images and labels of a run. Of a data set on record they are known without its images,
    see data/digests.json, so that a stored run is found where they are not at hand."""
    try:
        manifest = manifests.load(dataset, label_noise=label_noise, seed=seed, images_per_class=images_per_class)
    except FileNotFoundError:
        known = _on_record("images", dataset).get(f"{label_noise:g}/{seed}")
        if known is None or images_per_class is not None:
            raise
        return known
    return f"{manifest.name}:{manifest.digest()}"


# of a data set in a folder, where it stays as it is while a process runs
_kept_digest_of_data = functools.cache(lambda folder, *data: digest_of_data(*data))


def digest_of_weights(backbone: str, weights: str | None) -> str | None:
    """`backbones.weights_digest`; of published weights on record it is known without a local file."""
    digest = backbones.weights_digest(backbone, weights)
    return _on_record("weights", backbone).get(weights, digest) if digest and digest == weights else digest


def _on_record(what: str, name: str) -> Any:
    """Of the images and weights of all stored runs: {"label noise/seed": digest} of the "images" of a data set,
    {weights: digest} of the "weights" of a network; else {}."""
    return records.committed(repository_root() / "data" / "digests.json")[what].get(name, {})


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU {platform.machine()}"


@functools.cache
def rounding() -> str:
    """How this processor rounds, with its libraries: a digest of elementary functions, a product and a convolution.

    Machines with the same digest give training runs the same bytes, as far as these operations tell.
    """
    generator = torch.Generator().manual_seed(0)
    numbers = 0.01 + 3 * torch.rand(4096, generator=generator)
    images, kernels = (torch.randn(size, generator=generator) for size in ((8, 16, 16, 16), (32, 16, 3, 3)))
    matrix = numbers.view(64, 64)
    with threads(1):
        rounded = [numbers.log(), numbers.exp(), numbers.pow(1.7), numbers.tanh(), numbers.sqrt(), matrix.softmax(1)]
        rounded += [matrix @ matrix.T, matrix.double() @ matrix.double(), torch.nn.functional.conv2d(images, kernels)]
    return hashlib.sha256(b"".join(tensor.contiguous().numpy().tobytes() for tensor in rounded)).hexdigest()[:16]
