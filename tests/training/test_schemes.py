"""Schemes: a teacher that is an average, and a toy that answers spent patience with a new problem."""

import functools
from pathlib import Path

import pytest
import torch

from dmlrepro.evidence import results
from dmlrepro.papers.params import Params
from dmlrepro.training import inference, loop, runs, schemes
from dmlrepro.training.schemes import momentum
from dmlrepro.training.spec import RunSpec

TINY = RunSpec(
    dataset="glyphs",
    images_per_class=4,
    embedding_size=8,
    loss="baselines.proxy_nca_pp",
    steps=4,
    batch_size=16,
    lr=1e-3,
    threads=1,
)
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


def test_spent_patience_begins_a_new_problem_and_the_best_of_all_is_kept(toys, monkeypatch):
    scores = iter([0.1, 0.5, 0.4, 0.3, 0.2, 0.4, 0.3, 0.2, 0.9])

    def evaluate(task, networks, step, **_):
        return [{"step": step, "metric": "P@1", "value": next(scores)}], {"": torch.zeros(1, 8)}

    monkeypatch.setattr(inference, "evaluate", evaluate)
    spec = TINY.replace(scheme="restart", steps=40, eval_every=1, patience=2, restore_best=True)
    outcome = loop.train(spec)
    # the first problem is spent after 0.3, two evaluations below 0.5; the second after the second below its own 0.4
    assert len(outcome.losses) == 8
    assert {row["selection"]: row["step"] for row in outcome.rows} == {"last": 8, "test_best": 2}


def test_a_run_interrupted_in_its_second_problem_resumes_exactly(toys, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1)
    spec = TINY.replace(scheme="restart", steps=60, eval_every=1, patience=2, restore_best=True, fold=0, lr=0.1)
    whole = loop.train(spec)
    real, begun = loop.train_step, []
    monkeypatch.setattr(
        loop.State, "begin_problem", lambda state, real=loop.State.begin_problem: begun.append(real(state))
    )

    def dies(*args):
        if begun:
            begun.append(None)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(loop, "train_step", dies)
    with pytest.raises(KeyboardInterrupt):
        loop.train(spec, checkpoint=tmp_path / "run.pt")
    monkeypatch.setattr(loop, "train_step", real)
    resumed = loop.train(spec, checkpoint=tmp_path / "run.pt")
    assert resumed.rows == whole.rows and torch.equal(resumed.losses, whole.losses)
    assert all(torch.equal(resumed.states["loss"][key], value) for key, value in whole.states["loss"].items())


@pytest.mark.parametrize(
    "change, message",
    [
        ({"scheme": "momentun"}, r"unknown scheme 'momentun'; choose one of momentum, supervised"),
        ({"scheme_options": {"momentum": 0.9}}, r"scheme 'supervised' has no option momentum; it takes \[\]"),
        ({"scheme": "momentum", "scheme_options": {"decay": 1}}, r"no option decay; it takes \['momentum', 'consist"),
    ],
)
def test_a_bad_scheme_is_an_error_before_anything_runs(change, message):
    with pytest.raises(ValueError, match=message):
        TINY.replace(**change)


def test_a_bad_option_is_named():
    with pytest.raises(ValueError, match=r"momentum must lie in \[0, 1\), got 1"):
        loop.train(TINY.replace(scheme="momentum", scheme_options={"momentum": 1.0}))
