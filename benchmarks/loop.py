"""Images per second of the whole training loop against the bare backbone, forward and backward, on the same batch.

    python benchmarks/loop.py            all cases whose data are there; writes results/benchmarks/loop.csv
    python benchmarks/loop.py --quick    one small case, seconds; prints, writes nothing

The loop is what `training.loop.train` does at each step: sampling, cropping, the transfer, the network, the loss,
backward and the optimiser. Steps of both alternate in one process; `ratio` is the median over pairs of neighbours,
which a busy machine slows alike. Seconds are of CPU time on one thread, those of the thread that prepares batches
included, so nothing hides on another core; on a GPU, of the clock, with bfloat16. Only the ratios carry over to another
machine; the exit status is 1 if one of them misses its limit.

A case without a limit is there to be read: a conv4 needs a fifth of a millisecond per image, so a loss of two
milliseconds (pytorch-metric-learning's), or one over all pairs of 3,100 points (PFML), shows beside it.
"""

import statistics
import sys

import harness
import torch

from experiments import timing
from experiments.training import batches, inference, loop
from experiments.training.device import device_for_training, reuse_freed_memory
from experiments.training.keys import device_name
from experiments.training.spec import RunSpec

LIMIT = {"cpu": 0.9, "cuda": 0.85}
GLYPHS = RunSpec("glyphs", embedding_size=64, loss="baselines.proxy_nca_pp", samples_per_class=4, steps=1, lr=1e-3)
PHOTOGRAPHS = RunSpec(
    "cub-subset",
    backbone="squeezenet1_1",
    weights="imagenet",
    image_size=128,
    test_resize=144,
    freeze_batchnorm=True,
    loss="baselines.proxy_anchor",
    steps=1,
)
PFML = {"loss": "potential_field.PotentialFieldLoss", "samples_per_class": 4}
CASES = {  # name: (spec, measured steps, whether the limit holds)
    "glyphs ProxyNCA++": (GLYPHS, 200, True),
    "glyphs ProxyAnchor": (GLYPHS.replace(loss="baselines.proxy_anchor"), 60, False),
    "glyphs MultiSimilarity": (GLYPHS.replace(loss="baselines.multi_similarity"), 60, False),
    "glyphs PFML": (GLYPHS.replace(**PFML), 60, False),
    "cub-subset ProxyAnchor": (PHOTOGRAPHS, 12, True),
    "cub-subset PFML": (PHOTOGRAPHS.replace(**PFML), 12, True),
    "cars-subset ProxyAnchor": (PHOTOGRAPHS.replace(dataset="cars-subset", image_size=112, test_resize=112), 12, True),
}
ON_A_GPU = {
    f"{name} {backbone}": (
        PHOTOGRAPHS.replace(**changes, dataset=name, backbone=backbone, image_size=224, test_resize=256),
        100,
        True,
    )
    for name in ("cub", "cub-subset")
    for backbone, changes in (
        ("resnet50.tv_in1k", {"embedding_size": 512, "pooling": "avg+max"}),
        ("bn_inception", {"batch_size": 180}),
    )
}
QUICK = {"quick": (GLYPHS.replace(images_per_class=4, batch_size=20), 4, False)}


def measure(spec: RunSpec, steps: int) -> tuple[float, float, float]:
    """Median seconds of one step of the loop, of forward and backward of the bare network, and of bare over loop."""
    device = device_for_training()
    torch.set_num_threads(1)
    reuse_freed_memory()
    spec = spec.replace(steps=steps + 3, precision="bfloat16" if device.type == "cuda" else "float32")
    manifest = batches.load_dataset(spec)
    network = inference.build_network(spec, manifest).to(device).train()
    task = batches.Task(spec, manifest)
    state = loop.begin(task, network)
    stream = task.train_batches(0, spec.steps, device)

    batch = None

    def whole() -> None:
        nonlocal batch
        batch, labels = next(stream)
        loop.train_step(state, batch, labels)
        state.algorithm.after_step()

    def bare() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=spec.precision == "bfloat16"):
            value = network(batch).sum()
        value.backward()

    times = []
    for _ in range(spec.steps):
        in_loop = timing.seconds(whole, device.type)
        network.zero_grad(set_to_none=True)
        times.append((in_loop, timing.seconds(bare, device.type)))
    times = times[3:]  # the first steps allocate
    return tuple(map(statistics.median, zip(*((in_loop, alone, alone / in_loop) for in_loop, alone in times))))


def _absent(spec: RunSpec) -> Exception | None:
    """Why the data or the pretrained weights of a case are not there."""
    try:
        manifest = batches.load_dataset(spec)
    except (FileNotFoundError, ValueError) as error:  # a set and its subset share a folder, which has the counts of one
        return error
    try:
        inference.build_network(spec, manifest)
    except FileNotFoundError as error:
        return error
    return None


def main(cases: dict[str, tuple[RunSpec, int, bool]]) -> tuple[list[dict], bool]:
    """Rows of the table, and whether every ratio met its limit. Cases without their data are left out, and named."""
    kind = device_for_training().type
    rows, passed = [], True
    for name, (spec, steps, limited) in cases.items():
        if absent := _absent(spec):
            print(f"{name}: left out ({absent})", file=sys.stderr)
            continue
        in_loop, alone, ratio = measure(spec, steps)
        limit = LIMIT[kind] if limited else None
        rows.append(
            {
                "case": name,
                "backbone": spec.backbone,
                "image_size": spec.image_size or 32,
                "batch_size": spec.batch_size,
                "device": device_name(),
                "form": "bare network",
                "metric": "seconds",
                "loop_images_per_second": spec.batch_size / in_loop,
                "bare_images_per_second": spec.batch_size / alone,
                "ratio": ratio,
                "limit": limit,
            }
        )
        speeds = f"{spec.batch_size / in_loop:8.1f} images/s in the loop, {spec.batch_size / alone:8.1f} bare"
        passed &= harness.within(f"{name:26} {speeds}: ratio", ratio, least=limit)
    return rows, bool(rows) and passed


if __name__ == "__main__":
    quick = harness.options(__doc__).quick
    harness.finish("loop", *main(QUICK if quick else CASES | (ON_A_GPU if torch.cuda.is_available() else {})), quick)
