"""Schemes: a teacher that is an average of the network."""

import functools

import torch
from tiny import TINY

from experiments.analysis import results
from experiments.params import Params
from experiments.study import Study
from experiments.training import inference, loop, runs
from experiments.training.schemes import momentum

TEACHER = TINY.replace(scheme="momentum", scheme_options={"momentum": 0.9})


EXAMPLE = Study("99_example", Params)


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


def test_two_networks_are_evaluated_saved_and_tabulated(tmp_path, monkeypatch, shared_cache):
    run = runs.run(TEACHER.replace(method="X", setting="a=1"))
    table = results.tidy([run], EXAMPLE.configured({}))
    assert set(table["setting"]) == {"a=1", "a=1;network=teacher"}
    ours, theirs = (table[table["setting"] == setting] for setting in ("a=1", "a=1;network=teacher"))
    assert list(ours["metric"]) == list(theirs["metric"])
    manifest = inference.batches.load_dataset(TEACHER)
    embeddings = inference.embed_images(TEACHER, run.network("teacher"), manifest, manifest.indices("test"))
    assert torch.allclose(embeddings, run.arrays["embeddings teacher"], atol=1e-5)
