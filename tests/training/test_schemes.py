"""Schemes: a teacher that is an average, and a toy that answers spent patience with a new problem."""

import functools
from pathlib import Path

import pytest
import torch
from tiny import TINY

from experiments.analysis import results
from experiments.params import Params
from experiments.training import inference, loop, runs, schemes
from experiments.training.builders import scheme_builder
from experiments.training.schemes import momentum

TEACHER = TINY.replace(scheme="momentum", scheme_options={"momentum": 0.9, "consistency": 0.5})


class Example(Params):
    notebook = "99_example"
    paper = "x"


@pytest.fixture
def toys(monkeypatch):
    monkeypatch.setattr(schemes, "__path__", [*schemes.__path__, str(Path(__file__).parent / "toy_schemes")])


def states_of(scheme) -> dict:
    return {name: value.clone() for name, value in scheme.network.state_dict().items()}


def test_the_teacher_is_the_moving_average_of_weights_and_statistics(monkeypatch):
    before, seen, after_step = [], [], momentum.Scheme.after_step

    def spy(scheme):
        seen.append(states_of(scheme))
        after_step(scheme)

    build = momentum.Scheme.__init__

    @functools.wraps(build)
    def built(scheme, *args, **options):
        build(scheme, *args, **options)
        before.append(states_of(scheme))

    monkeypatch.setattr(momentum.Scheme, "after_step", spy)
    monkeypatch.setattr(momentum.Scheme, "__init__", built)
    outcome = loop.train(TEACHER)
    assert len(seen) == 4
    expected = before[0]
    for state in seen:
        for name, value in state.items():
            expected[name] = 0.9 * expected[name] + 0.1 * value if value.is_floating_point() else value
    for name, value in outcome.states["teacher"].items():
        assert torch.allclose(value, expected[name], rtol=1e-5, atol=1e-7), name
    assert any("running_mean" in name for name in expected)
    assert not torch.equal(outcome.states["teacher"]["head.weight"], outcome.states["network"]["head.weight"])


def test_a_teacher_without_a_term_leaves_supervised_training_as_it_is():
    alone = loop.train(TINY)
    watched = loop.train(TINY.replace(scheme="momentum"))
    assert torch.equal(alone.losses, watched.losses) and watched.terms == {}
    assert torch.equal(alone.embeddings[""], watched.embeddings[""])
    assert alone.rows == [row for row in watched.rows if "network" not in row]


def test_terms_add_up_and_each_is_logged():
    outcome = loop.train(TEACHER)
    assert set(outcome.terms) == {"loss", "consistency"}
    assert torch.allclose(sum(outcome.terms.values()), outcome.losses)
    assert outcome.terms["consistency"][0].item() != 0  # in training and in evaluation BatchNorm differs


def test_two_networks_are_evaluated_saved_and_tabulated(tmp_path, monkeypatch, shared_cache):
    run = runs.run(TEACHER.replace(method="X", setting="a=1"))
    table = results.tidy([run], Example.from_values({}))
    assert set(table["setting"]) == {"a=1", "a=1;network=teacher"}
    ours, theirs = (table[table["setting"] == setting] for setting in ("a=1", "a=1;network=teacher"))
    assert list(ours["metric"]) == list(theirs["metric"])
    manifest = inference.batches.load_dataset(TEACHER)
    embeddings = inference.embed_images(TEACHER, run.network("teacher"), manifest, manifest.indices("test"))
    assert torch.allclose(embeddings, run.arrays["embeddings teacher"], atol=1e-5)
    assert run.arrays["losses consistency"].shape == (4,)


SCORES = (0.1, 0.5, 0.4, 0.3, 0.2, 0.4, 0.3, 0.2, 0.9)


@pytest.fixture
def problems(toys):
    return TINY.replace(scheme="restart", steps=40, eval_every=1)


@pytest.fixture
def scored(monkeypatch):
    """The first problem is spent at 0.3, two evaluations below 0.5; the next four later, two below its own 0.4."""

    def evaluate(task, networks, step, **_):
        return [{"step": step, "metric": "P@1", "value": SCORES[step - 1]}], {"": torch.zeros(1, 8)}

    monkeypatch.setattr(inference, "evaluate", evaluate)


@pytest.mark.parametrize("restore_best", [False, True])
def test_a_spent_problem_is_followed_by_another_and_the_best_of_all_is_kept(problems, scored, restore_best):
    outcome = loop.train(problems.replace(restore_best=restore_best))
    assert len(outcome.losses) == 8
    assert {row["selection"]: row["step"] for row in outcome.rows} == {"last": 8, "test_best": 2}
    until = loop.train(TINY.replace(steps=2)) if restore_best else outcome
    assert all(torch.equal(outcome.states["network"][k], value) for k, value in until.states["network"].items())


def test_the_patience_of_the_run_counts_across_problems_and_ends_within_one(problems, scored):
    assert len(loop.train(problems.replace(patience=5)).losses) == 7
    assert len(loop.train(problems.replace(patience=1)).losses) == 3  # the first problem was not spent yet


def test_a_new_problem_knows_the_best_weights_of_the_last_one_and_goes_on_from_the_last(problems, scored, monkeypatch):
    scheme, seen = scheme_builder("restart", {}), []
    next_problem = scheme.next_problem

    def spy(self, best):
        seen.append((best, states_of(self)))
        return next_problem(self, best)

    monkeypatch.setattr(scheme, "next_problem", spy)
    loop.train(problems)
    (first, network), (second, _) = seen
    assert (first["step"], second["step"]) == (2, 6)
    for weights, steps in ((first["modules"]["network"], 2), (network, 4)):
        expected = loop.train(TINY.replace(steps=steps)).states["network"]
        assert all(torch.equal(weights[key], value) for key, value in expected.items())


def test_a_term_that_comes_later_leaves_the_others_logged_from_the_start(problems, scored):
    outcome = loop.train(problems)
    assert outcome.terms["projection"][:4].count_nonzero() == 0 and outcome.terms["projection"][4:].all()
    assert outcome.terms["loss"].all() and torch.allclose(sum(outcome.terms.values()), outcome.losses)


def test_a_run_interrupted_in_its_second_problem_resumes_exactly(problems, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1)
    spec = problems.replace(steps=60, restore_best=True, fold=0, lr=0.1)
    whole = loop.train(spec)
    problem_ends = next(step for step, value in enumerate(whole.terms["projection"].tolist()) if value)

    def dies_in_the_second(state, *batch, step=loop.train_step):
        if state.step == problem_ends + 1:
            raise KeyboardInterrupt
        return step(state, *batch)

    with monkeypatch.context() as interrupted, pytest.raises(KeyboardInterrupt):
        interrupted.setattr(loop, "train_step", dies_in_the_second)
        loop.train(spec, checkpoint=tmp_path / "run.pt")
    resumed = loop.train(spec, checkpoint=tmp_path / "run.pt")
    assert resumed.rows == whole.rows and torch.equal(resumed.losses, whole.losses)
    for actual, expected in zip((resumed.terms, *resumed.states.values()), (whole.terms, *whole.states.values())):
        assert actual.keys() == expected.keys()
        assert all(torch.equal(actual[key], value) for key, value in expected.items())


def test_a_bad_option_is_named():
    with pytest.raises(ValueError, match=r"momentum must lie in \[0, 1\), got 1"):
        loop.train(TINY.replace(scheme="momentum", scheme_options={"momentum": 1.0}))
