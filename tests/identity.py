"""What each kind of recorded run does first: loss and gradient norm of a few steps, on embedded images.

    python tests/identity.py            # what moved, beside tests/identity.csv
    python tests/identity.py --write    # the same, and the table is written anew

A kind is a loss, an algorithm, the part that is trained and the network, with the options that are set: the names of
those that are numbers, words and zeros with their values. tests/identity.jsonl has the first spec on record of each
kind, and five published ones with what no recorded run has: warm-up, drops of the learning rate, RMSprop, a bound of
the norm. `--write` adds what the record has gained and keeps tolerances. No cache of runs is asked.
"""

import csv
import json
import os
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from experiments.training import loop
from experiments.training.algorithms import chance_constrained
from experiments.training.spec import RunSpec, from_record

FOLDER = Path(__file__).parent
SPECS, TABLE = FOLDER / "identity.jsonl", FOLDER / "identity.csv"
RECORD = FOLDER.parent / "results" / "small" / "runs"
KIND = ("loss", "algorithm", "trained", "network", "options")
VALUES = ("losses", "gradients", "scores")
TOLERANCE = 1e-4  # relative; a row may say otherwise, up to a tenth of what another draw or schedule makes of it

IMAGES, CLASSES = 6, 200  # images of each class, and the training classes of glyphs
CROPS = {"image_size": 28, "test_resize": 32}
LEFT_OUT = ("label_noise", "epochs", "eval_every", "eval_every_epochs", "patience", "restore_best", "keep_history")
LEFT_OUT += ("precision",)  # processors round bfloat16 too differently for a comparison


def kind_of(spec: dict) -> tuple[str, ...]:
    options = {**spec.get("loss_options", {}), **spec.get("scheme_options", {})}
    numbers = {name for name, value in options.items() if type(value) in (int, float) and value}  # 0 switches off
    words = sorted(name if name in numbers else f"{name}={value}" for name, value in options.items())
    part, network = spec.get("train_from") or "whole", spec.get("backbone", "conv4")
    return spec.get("loss") or "", spec.get("scheme", "supervised"), part, network, " ".join(words)


def scaled(spec: dict) -> RunSpec:
    """A recorded spec on embedded images, with a few steps in which all happens that later ones of the run have.

    Batches, views, embedding size, optimiser, rates, clipping and starts are the run's own.
    """
    small = {name: value for name, value in spec.items() if name not in LEFT_OUT}
    small |= {"dataset": "glyphs", "images_per_class": IMAGES, "threads": 1}
    loss, algorithm = dict(spec.get("loss_options", {})), dict(spec.get("scheme_options", {}))
    if small.get("loss"):
        small |= {"steps": 5, "backbone": "conv4"}
    if small.get("weights"):
        small |= {"weights": "symbols", "backbone": "conv4", **CROPS}
    if small.get("train_from", "head") not in (None, "head"):
        small["train_from"] = "block3"
    step = small.get("batch_size", 100) / (CLASSES * IMAGES)  # in epochs
    if "warmup_epochs" in small:
        small["warmup_epochs"] *= step
    if "lr_drop_epochs" in small:
        small["lr_drop_epochs"] = [3 * step]
    if "clip_norm" in small:
        small["clip_norm"] = 1.0  # no gradient reaches 10
    if "memory_size" in loss:  # it is full before the last step
        loss |= {"memory_size": 2 * small["batch_size"], "warmup_steps": 1}
    if "MeanFieldContrastive" in (spec.get("loss") or ""):
        loss["negative_margin"] = 1.0  # fields as they are drawn are nowhere within 0.3
    if loss.get("quality") == 0:
        small["seed"] = 5  # rounding decides which neighbours PLM takes, but hardly with this one
    if loss.get("regularization"):
        loss["regularization"] = 10.0  # 0.01, the first on record, changes no digit
    if algorithm.get("momentum"):
        algorithm["momentum"] = 0.8  # 0.99 leaves the encoder where it was for so few steps
    if "clusters" in algorithm:
        algorithm["clusters"] = 20
    if "neighbours" in small or "clusters" in algorithm:  # an epoch of half the classes has 4 steps, or 2
        small |= {"images_per_class": 2, "fold": 0, "folds": 2}
    if algorithm.get("projection"):
        algorithm["projection"] = 1.0  # 2e-4 changes no digit after one step
    if small.get("scheme") == "chance_constrained":
        small |= {"images_per_class": 2 * IMAGES, "seed": 4}  # a pool, and a seed with which two roundings agree
    if "samples" in algorithm:  # crops, or a sample of the batch that is chosen too is at distance 0 from itself
        small |= {"embedding_size": 16, "seed": 14, **CROPS}
    if "problem_steps" in algorithm:  # the second problem is held to the best weights of the first, of one step earlier
        algorithm["problem_steps"] = 3
        small |= {"steps": 6, "eval_every": 2}
    if "projections" in algorithm:  # the last two steps are not taken
        algorithm["projections"] = 2
        small["steps"] = 8
    return from_record(small | {"loss_options": loss, "scheme_options": algorithm})


def first_steps(spec: RunSpec) -> dict[str, list[float]]:
    """Loss and norm of all gradients as the optimiser sees them, by step; the scores of a run without a loss."""
    norms = []

    def observe(optimizer: torch.optim.Optimizer, *_: object) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norms.append(float(torch.stack([gradient.double().norm() for gradient in gradients]).norm()))

    hook, clip = register_optimizer_step_pre_hook(observe), chance_constrained.clip_to_unit_ball
    try:
        # CCP's points a hundredth shorter. A proxy that starts at a sample has norm 1 and may have distance 0 from one
        # of the batch: rounding would decide whether it is clipped, and whether the pair is violated
        shorter = mock.patch.object(chance_constrained, "clip_to_unit_ball", lambda vectors: 0.99 * clip(vectors))
        with mock.patch.object(torch.cuda, "is_available", return_value=False), shorter:
            outcome = loop.train(spec)
    finally:
        hook.remove()
    scores = {row["metric"]: row["value"] for row in outcome.rows}
    shown = [] if spec.loss else [scores["R@1"], scores["MAP@R"]]
    return {"losses": outcome.losses.tolist(), "gradients": norms, "scores": shown}


def specs() -> dict[tuple[str, ...], dict]:
    return {kind_of(spec): spec for spec in map(json.loads, SPECS.read_text(encoding="utf-8").splitlines())}


def on_record() -> dict[tuple[str, ...], dict]:
    """The first spec of each kind on record, without what a RunSpec has of itself. What a line lacks is nothing."""
    usual = json.loads(json.dumps(RunSpec("").as_dict()))
    first: dict[tuple[str, ...], dict] = {}
    for file in sorted(RECORD.glob("*.jsonl")):
        for spec in (json.loads(line).get("spec") for line in file.read_text(encoding="utf-8").splitlines()):
            if spec and kind_of(spec) not in first:  # a line without a spec is a measurement
                whole = {name: spec.get(name) for name, value in usual.items() if name in spec or value}
                first[kind_of(spec)] = {name: value for name, value in whole.items() if value != usual[name]}
    return first


def table() -> dict[tuple[str, ...], dict]:
    """The committed rows by kind: `tolerance`, and VALUES as lists of numbers."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return {
            tuple(row[name] for name in KIND): {name: [*map(float, row[name].split())] for name in VALUES}
            | {"tolerance": float(row["tolerance"])}
            for row in csv.DictReader(file)
        }


def moved(row: dict, found: dict[str, list[float]]) -> list[str]:
    words = []
    for name in VALUES:
        if len(row[name]) != len(found[name]):
            words.append(f"{len(found[name])} {name} instead of {len(row[name])}")
        for number, (old, new) in enumerate(zip(row[name], found[name]), 1):
            if not abs(new - old) <= row["tolerance"] * abs(old):  # nor where it is not finite
                words.append(f"{name} {number}: {old:.7g} -> {new:.7g}")
    return words


def main(write: bool) -> None:
    torch.set_num_threads(1)
    known, old, rows = specs(), table(), []
    if write:
        known |= {kind: spec for kind, spec in on_record().items() if kind not in known}
        SPECS.write_text("".join(json.dumps(spec) + "\n" for spec in known.values()), encoding="utf-8")
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, {"DMLREPRO_CACHE": cache}):
        for kind, spec in known.items():
            found, before = first_steps(scaled(spec)), old.get(kind)
            if words := ["new"] if before is None else moved(before, found):
                print(" ".join(kind), *words, sep="\n    ")
            shown = [" ".join(f"{number:.7g}" for number in found[name]) for name in VALUES]
            rows.append([*kind, f"{before['tolerance'] if before else TOLERANCE:g}", *shown])
    if write:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([[*KIND, "tolerance", *VALUES], *rows])


if __name__ == "__main__":
    main(write="--write" in sys.argv[1:])
