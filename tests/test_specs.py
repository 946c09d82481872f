"""What notebooks plan and what their runs see: every seed, training images alone."""

import json
from collections import defaultdict

import pytest
from tiny import TINY

from experiments.datasets import manifests
from experiments.report import catalogue
from experiments.training import batches, loop


@pytest.mark.parametrize("name", [name for name in sorted(catalogue.studies()) if not name.startswith("0")])
def test_every_run_is_planned_once_for_each_seed(name):
    """Whichever of the seeds keep their evaluations."""
    study, planned = catalogue.find(name), defaultdict(list)
    whatever = dict.fromkeys(("seed", "keep_history", "eval_every", "eval_every_epochs"))
    for spec in study.specs_untrained(study.configured({"seeds": 2})):
        run = spec.as_dict() | whatever | {"labels": (spec.method, spec.setting, spec.protocol)}
        planned[json.dumps(run, sort_keys=True)].append(spec.seed)
    assert [run for run, there in planned.items() if there != [0, 1]] == []


def test_seeds_have_other_scores():
    """Specs may differ where the streams drawn from them do not."""
    rows = [loop.train(TINY.replace(seed=seed)).rows for seed in (0, 1)]
    one, other = (row["value"] for run in rows for row in run if row["metric"] == "MAP@R")
    assert one != other


def test_batches_show_training_images_alone_and_no_test_image_is_one():
    manifest = manifests.load("glyphs", images_per_class=TINY.images_per_class)
    task = batches.Task(TINY, manifest)
    drawn = [task.train[picked.numpy()] for _, picked in task.index_batches(0, 2 * task.steps_per_epoch)]
    assert {manifest.split[index] for some in drawn for index in some.tolist()} == {"train"}
    images = [image.tobytes() for image in manifest.images]
    train, test = ({images[index] for index in manifest.indices(part)} for part in ("train", "test"))
    assert train and test and not train & test
