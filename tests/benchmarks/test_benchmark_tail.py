"""The benchmark of tails measures three forms of one run and compares them with their limits."""


def test_the_forms_differ_in_what_is_trained_alone(benchmark):
    forms = {name: spec.as_dict() for name, spec in benchmark.forms_of("small", dataset="cub-subset").items()}
    differing = {key for key in forms["tail"] if forms["tail"][key] != forms["whole"][key]}
    assert differing == {"train_from", "cached_views"}
    assert [forms[name]["train_from"] for name in ("tail", "whole", "head")] == ["fire6", None, "head"]
    assert len({form["steps"] for form in forms.values()}) == 1


def test_forms_are_measured_and_a_limit_that_is_missed_fails(benchmark, monkeypatch, capsys):
    forms = benchmark.forms_of("quick", train_from="block3", steps=10)
    monkeypatch.setattr(benchmark, "FASTER", 0.0)
    monkeypatch.setattr(benchmark, "BEHIND", 100.0)
    monkeypatch.setattr(benchmark, "AHEAD", -100.0)
    rows, passed = benchmark.main(forms, 1, 3)
    assert passed and [row["form"] for row in rows] == ["tail", "whole", "head"]
    assert rows[0]["times_the_tail"] == 1 and all(row["seconds_per_step"] > 0 for row in rows)
    assert all(0 < row["MAP@R"] < row["R@1"] < 100 for row in rows)
    assert [row["once_seconds"] > 0 for row in rows] == [True, False, True]
    monkeypatch.setattr(benchmark, "AHEAD", 100.0)
    monkeypatch.setattr(benchmark, "scores", lambda spec, seeds: {"R@1": 50.0, "MAP@R": 20.0})
    assert not benchmark.main(forms, 1, 1)[1]
    assert "tail less head 0 (limit: at least 100)" in capsys.readouterr().out
