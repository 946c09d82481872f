"""The search: it finds the best, continues where it was stopped, and never looks at the test set."""

import pytest
import torch
from tiny import TINY as UNNAMED

from dmlrepro.papers.methods import BASELINES
from dmlrepro.training import protocols, runs, search
from dmlrepro.training.spec import RunSpec

TINY = UNNAMED.replace(method="ProxyNCA++")


def quality(models: list[RunSpec]) -> float:
    """A smooth score with its maximum at temperature 0.1 and learning rate 0.01, and a check of what is trained."""
    assert [model.fold for model in models] == [0, 1, 2, 3]
    assert {model.seed for model in models} == {protocols.TUNING_SEED}
    temperature, rate = torch.tensor([models[0].loss_options["temperature"], models[0].loss_lr["*"]]).log10().tolist()
    return 1 - (temperature + 1) ** 2 / 4 - (rate + 2) ** 2 / 36


def test_a_search_finds_the_best_and_continues_where_it_was_stopped(tmp_path, monkeypatch, shared_cache):
    def at(folder, trials):
        monkeypatch.setattr(search, "journal_of", lambda name: tmp_path / f"{folder}-{name}")
        return search.search(TINY, BASELINES[TINY.method].ranges, trials=trials)

    monkeypatch.setattr(search, "validation_score", quality)
    best, rows = at("whole", 24)
    assert len(rows) == 24 and max(row["val MAP@R"] for row in rows) > 0.95
    assert best.seed == TINY.seed and best.fold is None
    assert quality(protocols.expand(best.replace(seed=protocols.TUNING_SEED), "mlrc")) == max(
        row["val MAP@R"] for row in rows
    )
    assert max(row["val MAP@R"] for row in rows[10:]) > max(row["val MAP@R"] for row in rows[:10])  # it learns

    calls = []

    def interrupted(models):
        calls.append(models)
        if len(calls) == 14:
            raise KeyboardInterrupt
        return quality(models)

    monkeypatch.setattr(search, "validation_score", interrupted)
    with pytest.raises(KeyboardInterrupt):
        at("stopped", 24)
    monkeypatch.setattr(search, "validation_score", quality)
    assert at("stopped", 24) == (best, rows)
    monkeypatch.setattr(search, "validation_score", lambda models: pytest.fail("tried again"))
    assert at("stopped", 24) == (best, rows)


@pytest.mark.parametrize("damage", [b"half a rec", bytes(40), b"\xff\xfe\n"], ids=["cut", "zeros", "bytes"])
def test_a_damaged_journal_goes_on_from_its_whole_lines(damage, tmp_path, monkeypatch, shared_cache):
    monkeypatch.setattr(search, "validation_score", quality)
    monkeypatch.setattr(search, "journal_of", lambda name: tmp_path / "journal")
    ranges = BASELINES[TINY.method].ranges
    expected = search.search(TINY, ranges, trials=4)
    lines = (tmp_path / "journal").read_bytes().splitlines(keepends=True)
    (tmp_path / "journal").write_bytes(b"".join(lines[:-3]) + damage)
    with pytest.warns(UserWarning, match=rf"journal is damaged \(line {len(lines) - 2} is no complete record\)"):
        assert search.search(TINY, ranges, trials=4) == expected
    assert search.search(TINY, ranges, trials=4) == expected


def test_a_trial_is_scored_on_the_validation_classes_only(monkeypatch, shared_cache):
    models = protocols.expand(TINY, "mlrc")
    expected = sum(run.metric("val MAP@R", "val_best") for run in runs.run_all(models, jobs=1)) / 4
    assert search.validation_score(models) == pytest.approx(expected)
    assert not any(runs.folder_of(runs.key_of(model)).exists() for model in models)

    def last_one_diverges(specs):
        for spec in specs[:-1]:
            runs.run(spec)
        raise FloatingPointError("training diverged")

    with monkeypatch.context() as diverging:
        run_all = runs.run_all
        diverging.setattr(runs, "run_all", lambda specs: last_one_diverges(specs) if len(specs) > 1 else run_all(specs))
        assert search.validation_score(models) == 0
    assert not any(runs.folder_of(runs.key_of(model)).exists() for model in models)


def test_a_search_needs_trials_and_folds():
    ranges = BASELINES[TINY.method].ranges
    with pytest.raises(ValueError, match="trials must be positive, got 0"):
        search.search(TINY, ranges, trials=0)
    with pytest.raises(ValueError, match="'conventional' has no validation classes"):
        search.search(TINY, ranges, "conventional")


def test_a_protocol_without_folds_is_searched_on_classes_held_out_for_that(shared_cache, monkeypatch, tmp_path):
    monkeypatch.setattr(search, "journal_of", lambda name: tmp_path / name)
    (model,) = protocols.validated(TINY, "roth")
    assert (model.fold, model.folds, model.restore_best, model.eval_every) == (2, 3, True, 1)
    run = runs.run(model)
    assert {row["selection"] for row in run.rows} == {"last", "val_best"}
    best, rows = search.search(TINY, BASELINES[TINY.method].ranges, "roth", trials=2)
    assert len(rows) == 2 and all(0 < row["val MAP@R"] < 1 for row in rows)
    assert (
        best.fold is None
        and not best.restore_best
        and best.loss_options["temperature"] in {row["temperature"] for row in rows}
    )
    published = protocols.validated(TINY.replace(dataset="cub"), "roth", published=True)
    assert [(run.fold, run.eval_every_epochs, run.eval_every) for run in published] == [(2, 1, None)]
