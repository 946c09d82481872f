"""How R@1 grew during training: which runs keep it, that it counts nowhere else, and what is said.
And what studies read of trained runs."""

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from tiny import TINY

from experiments import studies
from experiments.analysis import goldens, results, saving, stored, tables
from experiments.training import inference, runs
from experiments.training.spec import RunSpec

WHERE = {"paper": "p", "experiment": "99_some", "profile": "quick", "dataset": "glyphs", "backbone": "conv4"}


def evaluated(curves):
    """A table of runs of two seeds, 50 each, and the evaluations {method: {step: R@1}} of the first."""
    rows = [{"method": method, "seed": seed, "value": 50.0} for method in curves for seed in (0, 1)]
    further = {"setting": tables.CURVE, "selection": "every"}
    rows += [
        further | {"method": method, "step": step, "value": value}
        for method, values in curves.items()
        for step, value in values.items()
    ]
    return results.frame(WHERE | {"metric": "R@1", "protocol": "conventional"} | row for row in rows)


def test_the_first_seed_of_every_trained_method_keeps_its_evaluations_and_nothing_else_changes():
    common = {"dataset": "glyphs", "loss": "baselines.triplet", "method": "Triplet"}
    main = [RunSpec(**common, steps=300, seed=seed) for seed in (0, 1)]
    others = [RunSpec("glyphs", method="untrained"), RunSpec(**common, steps=300, protocol="mlrc", fold=0)]
    first, *rest = studies.with_histories([*main, *others])
    assert rest == [main[1], *others]
    before, after = main[0].as_dict(), first.as_dict()
    assert {name for name in after if after[name] != before[name]} == {"keep_history", "eval_every"}
    assert (first.setting, first.eval_every, first.seed) == ("", 60, 0)
    (by_epochs,) = studies.with_histories([RunSpec(**common, epochs=4)])
    assert by_epochs.eval_every_epochs == pytest.approx(0.8)
    (as_asked,) = studies.with_histories([RunSpec(**common, epochs=4, eval_every_epochs=1.0)])
    assert as_asked.eval_every_epochs == 1.0 and as_asked.eval_every is None


def test_evaluations_during_training_stand_apart_and_count_nowhere():
    curves = {"A": {60: 40.0, 120: 50.0}, "B": {60: 45.0, 120: 50.0}}
    table = evaluated(curves)
    first = table.iloc[-1].to_dict() | {"setting": ""}  # an evaluation as the run has it, beside what is not drawn
    others = [first | {"metric": "RP"}, first | {"selection": "test_best", "value": 60.0}]
    raw = results.pd.concat([table[table["setting"] == ""], results.frame(others)], ignore_index=True)
    raw = results.pd.concat([raw, table[table["setting"] != ""].assign(setting="")], ignore_index=True)
    whole = studies.histories_apart(raw)
    assert saving.to_csv(whole) == saving.to_csv(table)
    assert stored.Stored("99_some", whole, {"steps": 120}).label == "glyphs, conv4, 120 steps, 2 seeds"
    assert set(tables.final_rows(whole)["setting"]) == set(goldens.means(whole)["setting"]) == {""}


def test_curves_are_shown_and_their_absence_is_said():
    table = evaluated({"A": {60: 40.0, 120: 50.0}, "B": {60: 45.0, 120: 70.0}})
    InteractiveShell.instance()  # a kernel has one
    with capture_output() as captured:
        studies.convergence(table)
    (picture,) = captured.outputs
    assert "against step" in picture.data["text/plain"]
    with capture_output() as captured:
        studies.convergence(table[table["setting"] == ""])
    assert "conventional protocol" in captured.outputs[0].data["text/markdown"]


@pytest.mark.parametrize("part", ["head", "block3"])
def test_tails_embed_the_training_images_as_the_whole_network_does(part):
    spec = TINY.replace(backbone="conv4", weights="symbols", train_from=part)
    run = runs.run(spec)
    manifest, embeddings, labels = studies.training_embeddings(run, per_class=2)
    images = [index for index in manifest.indices("train") if index % 4 < 2]
    assert labels.tolist() == manifest.labels[images].tolist()
    whole = inference.embed_images(spec, run.network(), manifest, images)
    assert torch.allclose(embeddings, whole, atol=1e-5) and whole.std() > 0.1
