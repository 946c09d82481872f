"""Train the embedded trunk: `python workflow/pretrain.py` writes experiments/networks/conv4_symbols.safetensors.

It is a classifier of symbols, as ImageNet networks are classifiers: softmax over normalised class weights, so that none
of the losses that the papers compare has made it. The committed file came out of this command; on another processor,
which rounds otherwise, another file of the same worth does.
"""

from pathlib import Path

from safetensors.torch import save_file

from experiments.files import atomic_write
from experiments.networks.backbones import SYMBOLS
from experiments.training import runs
from experiments.training.spec import RunSpec

SPEC = RunSpec(
    "symbols",
    backbone="conv4",
    embedding_size=64,
    loss="baselines.normalized_softmax",
    loss_lr={"*": 0.1},
    steps=1000,
    lr=1e-3,
    threads=1,
)


def pretrain(path: Path) -> None:
    """Train the trunk, or take it from the cache, and write it to a .safetensors file."""
    trunk = runs.run(SPEC).network().trunk.state_dict()
    with atomic_write(path) as file:
        save_file({name: value.contiguous() for name, value in trunk.items()}, file)


if __name__ == "__main__":
    pretrain(SYMBOLS)
    print(f"{SYMBOLS}: {SYMBOLS.stat().st_size:,} bytes")
