"""Golden tolerances: wide enough for another processor, too narrow for a mistake; mistakes are made here on purpose."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from example_tables import EXAMPLE
from example_tables import table as of_values

from dmlrepro import retrieval, samplers
from dmlrepro.losses import chance_constrained, mean_field, nivmf, piecewise_linear, potential_field
from experiments.analysis import goldens, results
from experiments.analysis.tables import START
from experiments.files import repository_root
from experiments.report import catalogue, regression
from experiments.training import loop, protocols
from experiments.training.algorithms import chance_constrained as ccp
from experiments.training.algorithms import momentum_encoder, pseudo_labels, supervised
from experiments.training.spec import RunSpec


def missed(name: str, method: str, setting: str = "") -> set[tuple[str, str]]:
    """(network, metric) of the golden values that a run, trained now, misses; all of a run that does not end."""
    study = catalogue.find(name)
    params = study.configured({"profile": "quick", "seeds": 1})
    spec = next(spec for spec in study.specs(params) if (spec.method, spec.setting) == (method, setting))
    golden = goldens.read(goldens.folder() / f"{params.notebook}.csv")
    own = golden["setting"].str.removesuffix("network=teacher").str.removesuffix(";") == setting
    golden = golden[(golden["method"] == method) & own]
    try:
        rows = loop.train(spec).rows
    except (FloatingPointError, ValueError) as error:
        assert "diverged" in str(error) or "NaN" in str(error)
        return set(golden[["setting", "metric"]].itertuples(index=False, name=None))
    table = results.tidy([protocols.Scored(spec, "glyphs", rows)], params)
    return set(goldens.missed(table, golden)[["setting", "metric"]].itertuples(index=False, name=None))


def negative(module, name: str):
    """A patch that flips the sign of what a loss or an algorithm minimises."""
    original = getattr(module, name)

    def flipped(*inputs, **options):
        value = original(*inputs, **options)
        return {key: -term for key, term in value.items()} if isinstance(value, dict) else -value

    return module, name, flipped


def away_from_the_network(algorithm: momentum_encoder.Algorithm) -> None:
    """The teacher's update with the wrong sign."""
    with torch.no_grad():
        theirs = algorithm.network.state_dict()
        for name, average in algorithm.teacher.state_dict().items():
            if average.is_floating_point():
                average.lerp_(theirs[name], algorithm.options.momentum - 1)


# by what is flipped: a run (notebook, method, setting) and the flip
FLIPS = {
    "PFML": (("15", "PFML", "alpha=3"), negative(potential_field.PotentialFieldLoss, "forward")),
    "EL-nivMF": (("22", "EL-nivMF", ""), negative(nivmf.ProbabilisticProxyLoss, "forward")),
    "MFCWMS": (("32", "MFCWMS", ""), negative(mean_field.MeanFieldClassWiseMultiSimilarityLoss, "forward")),
    "C2": (("41", "C2", ""), negative(chance_constrained.ProxyContrastiveLoss, "forward")),
    "PLM": (("50", "PLM", ""), negative(piecewise_linear.PiecewiseLinearManifoldLoss, "terms")),
    "supervised": (("11", "ProxyAnchor", "label_noise=0"), negative(supervised.Algorithm, "objective")),
    "projection": (("42", "C2-CCP-L", "projection=10"), negative(ccp, "projection_penalty")),
    "momentum encoder": (("50", "PLM", ""), (momentum_encoder.Algorithm, "after_step", away_from_the_network)),
    "pseudo-labels": (("50", "K-Means", ""), negative(pseudo_labels.Algorithm, "objective")),
}


@pytest.mark.parametrize("name", FLIPS)
def test_a_flipped_sign_in_a_loss_or_a_training_algorithm_is_outside_the_tolerance(name, monkeypatch):
    run, flip = FLIPS[name]
    monkeypatch.setattr(*flip)
    assert missed(*run)


def test_a_metric_with_shuffled_labels_is_far_outside_the_tolerance(monkeypatch):
    score = retrieval.retrieval

    def shuffled(embeddings, labels, *args, **kwargs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        return score(embeddings, labels[order], *args, **kwargs)

    monkeypatch.setattr(retrieval, "retrieval", shuffled)
    assert missed("22", "EL-nivMF") == {("", "R@1"), ("", "MAP@R")}


def test_a_sampler_that_repeats_its_first_batch_is_outside_the_tolerance(monkeypatch):
    draw = samplers.m_per_class

    def repeated(labels, batch_size, per_class, num_batches, generator):
        (first,) = draw(labels, batch_size, per_class, 1, generator)
        return [first] * num_batches

    monkeypatch.setattr(samplers, "m_per_class", repeated)
    assert missed("15", "PFML", "alpha=3")


def test_golden_comparison_sees_a_moved_and_a_missing_number(tmp_path, monkeypatch, capsys):
    golden = goldens.means(of_values(50.0, 60.0)).assign(tolerance=0.5)
    assert goldens.missed(of_values(50.4, 60.4), golden).empty
    assert list(goldens.missed(of_values(51.2, 60.0), golden)["new"]) == [pytest.approx(55.6)]
    assert len(goldens.missed(of_values(50.0, 60.0).assign(method="CPML"), golden)) == 1
    monkeypatch.setattr(goldens, "folder", lambda: tmp_path)
    golden.drop(columns="seeds").to_csv(tmp_path / "99_example.csv", index=False)
    for value, verdict in (
        (60.4, "R@1 of 1 runs within tolerance of the golden run: yes"),
        (61.2, "the golden run: no"),
    ):
        goldens.check(of_values(50.4, value), EXAMPLE.configured({}))
        assert verdict in capsys.readouterr().out


def test_accepted_values_are_the_means_of_the_committed_table(tmp_path, monkeypatch):
    committed = goldens.folder() / "23_nivmf_normalizer.csv"
    monkeypatch.setattr(goldens, "folder", lambda: tmp_path)
    monkeypatch.setenv("DMLREPRO_RESULTS", str(repository_root() / "results"))
    regression.accept(["23"])  # it trains nothing
    assert (tmp_path / committed.name).read_bytes() == committed.read_bytes()


def test_a_repeat_is_another_replica_of_what_is_trained_at_the_first_seed(monkeypatch):
    specs = [
        RunSpec("glyphs", method="untrained"),
        *(RunSpec("glyphs", loss="baselines.triplet", steps=1, seed=seed) for seed in (0, 1)),
    ]
    study = SimpleNamespace(
        specs=lambda _: specs, table=lambda run, _: of_values(*(float(spec.replica) for spec in run))
    )
    monkeypatch.setattr(regression.runs, "run_all", list)
    means = [table["value"].item() for table in regression.repeats(study, None)]
    assert means == [number / 2 for number in range(goldens.REPEATS + 1)]  # the untrained network has replica 0


def repeated(rng, rows=60, deviation=0.5, far=60.0):
    """Golden values of one seed with their repeats, all of one deviation."""
    names = [("p", f"method {number}", "", "R@1") for number in range(rows)]
    frame = pd.DataFrame(names, columns=goldens.IDENTITY)
    return [frame.assign(value=far + deviation * rng.standard_normal(rows), seeds=1) for _ in range(5)]


def test_a_tolerance_is_five_deviations_of_the_difference_of_two_runs_and_of_early_stops_their_own():
    drawn = repeated(np.random.default_rng(0))
    deviation = goldens.deviations(drawn)
    assert deviation.min() == pytest.approx(0.5, rel=0.15) and deviation.max() < 1.2  # pooled, or that of the row
    for seeds in (1, 4):
        expected = (5 * 2**0.5 / seeds**0.5 * deviation).tolist()
        assert goldens.tolerances(drawn[0].assign(seeds=seeds), deviation) == pytest.approx(expected)
    early = [f"method {number}" for number in range(10)]
    for table in drawn:
        table.loc[table["method"].isin(early), "value"] *= 2
    least = goldens.deviations(drawn, early).groupby(lambda row: row[1] in early).min()
    assert least[True] == pytest.approx(2 * least[False], rel=0.4)


def test_nothing_passes_for_the_network_before_training_and_what_is_not_trained_may_only_round():
    drawn = repeated(np.random.default_rng(2), deviation=0.1)
    start = {"protocol": "p", "method": START, "setting": "", "metric": "R@1", "value": 58.9, "seeds": 1}
    study = {"protocol": "", "method": "study", "setting": "", "metric": "integral", "value": 4.0, "seeds": 1}
    more = pd.DataFrame([start, study])
    drawn = [pd.concat([table, more], ignore_index=True) for table in drawn]
    deviation = goldens.deviations(drawn)
    tolerance = goldens.tolerances(drawn[0], deviation)
    assert tolerance[-2:] == [goldens.TIES, pytest.approx(0.004)]
    half = (drawn[0]["value"][:-2] - 58.9) / 2
    spread = deviation.to_numpy()
    allowed = np.where(half > goldens.NEAR * spread, np.minimum(half, goldens.WIDTH * spread), goldens.WIDTH * spread)
    assert np.allclose(tolerance[:-2], allowed) and 0.5 < np.mean(allowed == half) < 1
    near = drawn[0].assign(value=[*(drawn[0]["value"][:-2] - 1), 58.9, 4.0])
    assert max(goldens.tolerances(near, goldens.deviations(drawn))[:-2]) > 0.5  # repeats do not tell them apart
    assert goldens.tolerances(drawn[0], goldens.deviations([]))[-1] == pytest.approx(0.004)
