"""Images per second and multiplications per second of one device, measured where that is said, else stated.

What is stated is typical of one A100 in float32 (convolutions in TF32, matrix products not), where bfloat16 trains
twice as fast.
"""

import dataclasses
from dataclasses import dataclass

import torch

from experiments.training.spec import RunSpec


@dataclass(frozen=True)
class Throughput:
    """Training images per second at an image size in pixels; on "gpu" (one A100) or "cpu" (one core).

    evaluated: images per second in evaluation; None: three times as many as in training.
    loss: seconds of a step's loss; None: those of three products of the batch with the loss's parameters.
    """

    images: float
    size: int
    device: str
    source: str
    evaluated: float | None = None
    loss: float | None = None


THROUGHPUT = {
    "conv4": Throughput(5500, 32, "cpu", "measured"),
    "squeezenet1_1": Throughput(200, 128, "cpu", "measured"),
    "resnetv2_20": Throughput(10_000, 28, "gpu", "stated"),
    "bn_inception": Throughput(1200, 224, "gpu", "stated"),
    "googlenet": Throughput(1500, 224, "gpu", "stated"),
    "resnet50.tv_in1k": Throughput(750, 224, "gpu", "stated"),
    "vit_small_patch16_224.augreg_in21k": Throughput(350, 224, "gpu", "stated"),
    "vit_small_patch16_224.dino": Throughput(350, 224, "gpu", "stated"),
    "vit_base_patch16_224.augreg_in21k": Throughput(95, 224, "gpu", "stated"),
}
OTHERS = Throughput(500, 224, "gpu", "stated")
PRODUCTS = {"gpu": 1e13, "cpu": 2e10}  # additions and multiplications per second of float32 matrix products, stated
# bfloat16 trains so many times as fast: stated of GPUs, measured with the matrix units of CPUs (ResNet-18)
BFLOAT16 = {"gpu": 2.0, "cpu with AMX": 1.6, "cpu": 1.0}


def of_backbone(name: str | None) -> Throughput:
    """What the table has of a backbone in float32."""
    return THROUGHPUT.get(name, OTHERS)


def stated(spec: RunSpec) -> Throughput:
    """The table's throughput at the run's precision."""
    speed = of_backbone(spec.backbone)
    if spec.precision == "float32":
        return speed
    amx = speed.device == "cpu" and getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    factor = BFLOAT16["cpu with AMX" if amx else speed.device]
    return dataclasses.replace(speed, images=factor * speed.images, evaluated=3 * speed.images)
