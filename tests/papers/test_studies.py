"""How R@1 grew during training: which runs are repeated for it, that they count nowhere else, and what is said.
And what studies read of trained runs."""

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from tiny import TINY

from dmlrepro.evidence import results, stored, tables
from dmlrepro.papers import catalogue, studies
from dmlrepro.training import inference, runs
from dmlrepro.training.spec import RunSpec

WHERE = {"paper": "p", "experiment": "99_some", "profile": "quick", "dataset": "glyphs", "backbone": "conv4"}


def evaluated(curves):
    """A table of main runs of two seeds, 50 each, and the evaluations {method: {step: R@1}} of a further one."""
    rows = [{"method": method, "seed": seed, "value": 50.0} for method in curves for seed in (0, 1)]
    further = {"setting": tables.CURVE, "selection": "every"}
    rows += [
        further | {"method": method, "step": step, "value": value}
        for method, values in curves.items()
        for step, value in values.items()
    ]
    return results.frame(WHERE | {"metric": "R@1", "protocol": "conventional"} | row for row in rows)


def said(curves):
    return studies.still_rising(stored.Numbers(evaluated(curves)))


def test_the_first_seed_of_every_trained_method_is_repeated_and_nothing_else_changes():
    common = {"dataset": "glyphs", "loss": "baselines.triplet", "method": "Triplet"}
    main = [RunSpec(**common, steps=300, seed=seed) for seed in (0, 1)]
    others = [RunSpec("glyphs", method="untrained"), RunSpec(**common, steps=300, protocol="mlrc", fold=0)]
    (curve,) = studies.curves([*main, *others])
    before, after = main[0].as_dict(), curve.as_dict()
    assert {name for name in after if after[name] != before[name]} == {"keep_history", "eval_every"}
    assert (curve.setting, curve.eval_every, curve.seed) == (tables.CURVE, 60, 0)
    (by_epochs,) = studies.curves([RunSpec(**common, epochs=4)])
    assert by_epochs.eval_every_epochs == pytest.approx(0.8)
    (as_asked,) = studies.curves([RunSpec(**common, epochs=4, eval_every_epochs=1.0)])
    assert as_asked.eval_every_epochs == 1.0 and as_asked.eval_every is None


@pytest.mark.parametrize("name", ["10", "20"])
def test_main_comparisons_have_a_curve_of_every_trained_method(name):
    notebook = catalogue.find(name)
    specs = notebook.specs(notebook.params.from_values({"profile": "quick"}))
    main = {spec.method: spec for spec in specs if spec.seed == 0 and not spec.setting and spec.fold is None}
    found = {spec.method: spec for spec in specs if spec.setting == tables.CURVE}
    assert set(found) == set(main) - {"untrained"}
    for method, spec in found.items():
        assert spec.replace(setting="", eval_every=None, keep_history=False) == main[method]


def test_a_repeated_run_has_its_evaluations_alone_and_counts_nowhere():
    curves = {"A": {60: 40.0, 120: 50.0}, "B": {60: 45.0, 120: 50.0}}
    table = evaluated(curves)
    end = results.frame([table.iloc[-1].to_dict() | {"selection": "last"}, table.iloc[-1].to_dict() | {"metric": "RP"}])
    whole = studies.without_copies(results.pd.concat([table, end], ignore_index=True))
    assert results.to_csv(whole) == results.to_csv(table)
    assert stored.Stored("99_some", whole, {"steps": 120}).label == "glyphs, conv4, 120 steps, 2 seeds"
    assert set(tables.final_rows(whole)["setting"]) == set(results.golden_means(whole)["setting"]) == {""}


def test_the_losses_that_still_rise_are_named_with_the_steepest_first():
    steady = {60: 40.0, 120: 60.0, 180: 70.0, 240: 74.0, 300: 75.0}  # one point is no more than one
    assert said({"A": steady, "B": steady}).startswith("All 2 losses have converged: the R@1 of none rises")
    rising = {"B": steady | {300: 75.5}, "C": steady | {300: 80.0}, "D": steady | {300: 60.0}}
    assert said({"A": steady} | rising).endswith("(seed 0): C +6.0, B +1.5.")
    assert said({"A": steady} | rising).startswith("2 of 4 losses have not converged")


def test_the_last_fifth_is_found_between_evaluations_and_not_guessed_without_them():
    assert "A +2.0" in said({"A": {100: 60.0, 200: 65.0}})  # 63 at step 160
    with pytest.raises(tables.MissingRows, match="before the last fifth"):
        said({"A": {190: 60.0, 200: 65.0}})
    with pytest.raises(tables.MissingRows, match="evaluations during training"):
        said({"A": {}})


def test_curves_are_shown_with_the_highest_at_the_end_first_and_their_absence_is_said():
    table = evaluated({"A": {60: 40.0, 120: 50.0}, "B": {60: 45.0, 120: 70.0}})
    InteractiveShell.instance()  # a kernel has one
    with capture_output() as captured:
        studies.convergence(table)
    picture, _, sentence = captured.outputs
    assert "B: from 45.0 at 60.0 to 70.0 at 120; A: from 40.0 at 60.0 to 50.0 at 120" in picture.data["text/plain"]
    assert "not converged" in sentence.data["text/markdown"]
    with capture_output() as captured:
        studies.convergence(table[table["setting"] == ""])
    assert "conventional protocol" in captured.outputs[0].data["text/markdown"]


def test_heads_embed_the_training_images_as_the_whole_network_does():
    spec = TINY.replace(backbone="conv4", weights="symbols", freeze_trunk=True)
    run = runs.run(spec)
    manifest, embeddings, labels = studies.training_embeddings(run, per_class=2)
    images = [index for index in manifest.indices("train") if index % 4 < 2]
    assert labels.tolist() == manifest.labels[images].tolist()
    whole = inference.embed_images(spec, run.network(), manifest, images)
    assert torch.allclose(embeddings, whole, atol=1e-5) and whole.std() > 0.1
