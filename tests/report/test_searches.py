"""The committed searches: every notebook takes what was found for what it does not vary, and says so."""

import dataclasses
import json
import math

import pandas as pd
import pytest

from experiments import cli, methods, papers, profiles
from experiments.analysis import results, saving, stored
from experiments.files import signed
from experiments.report import catalogue, searches
from experiments.study import Execution
from experiments.training import protocols, runs, search

TINY = {"profile": "small", "dataset": "glyphs"}
METHODS = papers.methods()
FILE = "PFML--glyphs,conv4,symbols,head,dim=64,batch=100,steps=2.json"


@pytest.fixture(autouse=True)
def glyphs_at_small(monkeypatch):
    """Profile small also has glyphs, with short runs, which nothing here trains: a trial's score tells its options."""
    recipe = profiles.RECIPES["quick"]["glyphs"] | {"lr": 1e-4, "fixed": {"head_lr": 1e-3}, "train_from": "head"}
    monkeypatch.setitem(profiles.RECIPES["small"], "glyphs", recipe | {"steps": 2, "seeds": 2})
    monkeypatch.setattr(search, "validation_metrics", lambda models: [{"MAP@R": _score(model)} for model in models])


def _score(model) -> float:
    """The best where lr is 3e-4; the seed is that of tuning."""
    assert model.seed == protocols.TUNING_SEED
    return 0.5 - abs(math.log10(model.lr / 3e-4)) / 10 + model.fold / 100


def params_of(name: str, untuned: bool = False, **values):
    params = catalogue.find(name).configured(TINY | values)
    return params.untuned() if untuned else params


def specs(name: str, method: str, untuned: bool = False, **values):
    of_notebook = catalogue.find(name).specs_untrained(params_of(name, untuned, **values))
    return [spec for spec in of_notebook if spec.method == method]


def searched(name: str, *names: str, **values) -> dict[str, dict]:
    every = searches.wanted([catalogue.find(name)], lambda study: study.configured(TINY | values), names)
    return {record["method"]: record for record in searches.run(every, jobs=1)}


@pytest.mark.parametrize("name", ["10", "11", "41", "50"])
def test_a_notebook_trains_what_the_search_found(name):
    by_method = searched(name)
    assert by_method
    for method, record in by_method.items():
        before, after = (specs(name, method, untuned) for untuned in (True, False))
        assert len(before) == len(after)
        chosen = search.best_of(before[0], record)
        if (name, method) == ("11", "PFML"):  # whose claims are about the decay: the published one, whatever is found
            chosen = chosen.replace(loss_options={**chosen.loss_options, "alpha": 3.0})
        assert chosen == after[0]
        assert after[0].lr == record["found"]["options"]["lr"] != before[0].lr
        assert after[0].head_lr == pytest.approx(10 * after[0].lr)


def test_a_search_varies_the_learning_rate_and_at_most_three_decisive_options():
    for method in (method for method in METHODS.values() if method.search_space):
        ranges, root = methods.searched_ranges(method), METHODS[method.searched_as or method.name]
        assert "lr" in ranges and "loss_lr" not in ranges and len(ranges) <= 4
        assert set(method.searched_params) <= set(method.search_space)
        assert not root.searched_as and root.loss == method.loss, "a variant has the options of its search"
        assert methods.searched_ranges(root) == ranges


def test_variants_take_the_search_of_one_method():
    by_method = searched("41", "C2-CCP-L", "C2-CCP-S", methods=["C2-CCP-L", "C2-CCP-S"])
    assert list(by_method) == ["C2-CCP-L"] and by_method["C2-CCP-L"]["methods"] == ["C2-CCP-L", "C2-CCP-S"]
    options = by_method["C2-CCP-L"]["found"]["options"]
    for variant in ("C2-CCP-L", "C2-CCP-S"):
        (spec, *_) = specs("41", variant)
        assert spec.loss_options["negative_margin"] == options["negative_margin"]
        assert spec.lr == options["lr"] and spec.loss_lr["*"] == spec.head_lr == pytest.approx(10 * spec.lr)
    assert specs("41", "C2") == specs("41", "C2", untuned=True)
    with pytest.raises(ValueError, match="trains only variants of C2-CCP-L"):
        searched("41", "C2-CCP-S", methods=["C2-CCP-S"])


def test_a_search_starts_from_the_method_and_not_from_a_variant():
    with pytest.raises(ValueError, match="43_ccp_ablation_pool trains only variants of C2-CCP-L"):
        searched("43", "C2-CCP-L")  # of one proxy per class
    assert [*searched("45", "C2")] == ["C2"], "a level that is the method itself is one"
    for method in ("C2-CCP-L", "C2-Proxy"):
        (tuning,) = searches.wanted([catalogue.find("44")], lambda study: study.configured(TINY), [method])
        assert not tuning["spec"].setting and tuning["about"]["methods"][0] == method


def test_the_reader_and_the_notebook_decide_before_the_search_and_the_profile_after_it():
    options = searched("10", "PFML", "ProxyAnchor")["PFML"]["found"]["options"]
    assert set(options) == {"lr", "alpha", "delta"} and options["alpha"] != 3.0
    (spec, *_) = specs("10", "PFML", alpha=4.0)
    assert (spec.loss_options["alpha"], spec.loss_options["delta"]) == (4.0, options["delta"])
    anchor = specs("10", "ProxyAnchor", alpha=4.0)[0]
    assert anchor.loss_options["alpha"] != 4.0, "PFML's parameter is none of ProxyAnchor"
    (spec, *_) = specs("10", "PFML", lr=5e-4)
    assert (spec.lr, spec.head_lr, spec.loss_lr["proxies"]) == (5e-4, 1e-3, 0.05)
    assert spec.loss_options["alpha"] == options["alpha"]
    levels = [spec.loss_options for spec in specs("15", "PFML", alphas=[1.0, 3.0])]
    assert {(level["alpha"], level["delta"]) for level in levels} == {(1, options["delta"]), (3, options["delta"])}


@pytest.mark.parametrize("values", [{"profile": "quick"}, {"steps": 3}, {"batch_size": 60}, {"embedding_size": 32}])
def test_other_conditions_and_profiles_keep_the_published_settings(values):
    searched("10", "PFML")
    assert specs("10", "PFML") != specs("10", "PFML", untuned=True)
    assert specs("10", "PFML", **values) == specs("10", "PFML", untuned=True, **values)


def test_a_search_in_the_notebook_itself_replaces_the_committed_one():
    searched("10", "PFML")
    values = {"protocol": "mlrc", "search_trials": 2}
    assert params_of("10", **values).searches() == {} != params_of("10", protocol="mlrc").searches()
    assert specs("10", "PFML", **values) == specs("10", "PFML", untuned=True, protocol="mlrc")


def test_config_names_the_search(capsys):
    searched("11", "PFML")
    given = ["--profile", "small", "-p", "dataset", "glyphs", "-p", "delta", "0.25"]
    assert cli.main(["config", "11", *given]) == 0
    lines = capsys.readouterr().out.splitlines()
    source = "search, 24 runs, glyphs, head"
    block = lines[lines.index("conventional: PFML label_noise=0") + 1 :]
    origin = {line.split()[0]: line for line in block[: block.index("")]}
    assert all(source in origin[name] for name in ("lr", "head_lr", "loss_lr.proxies"))
    assert source not in origin["loss.alpha"] + origin["loss.delta"] and "reader" in origin["loss.delta"]
    assert sum(source in line for line in lines) == 2 * 3, "levels 0 and 0.2"


def saved(given, methods_of=("PFML",)):
    """A table of runs that were never trained, with what its record says of searches."""
    row = {"paper": "pfml", "experiment": given.notebook, "profile": "small", "dataset": "glyphs", "metric": "R@1"}
    rows = [row | {"method": method, "value": 50.0, "seed": seed} for method in methods_of for seed in range(2)]
    made = {"device": "CPU", "rounding": "as one"}
    finished = [
        runs.RunResult(spec, str(spec.seed), "", 1, "glyphs", [], {"seconds": 1.0}, made, from_cache=False)
        for spec in specs("10", "PFML")
    ]
    return saving.save(results.frame(rows), given, runs=finished)


def test_the_judge_sees_the_trials_here_and_in_the_saved_table():
    searched("10", "PFML", "CPML")
    given = params_of("10")
    table = pd.DataFrame({"method": ["PFML", "CPML", "ProxyAnchor", "PFML"]})
    assert Execution(catalogue.find("10"), given).trials(table) == {"PFML": 16, "CPML": 16, "ProxyAnchor": 0}
    path = saved(given, ("PFML", "ProxyAnchor"))
    made = json.loads(path.with_suffix(".json").read_text())
    (digest,) = {record["sha256"] for record in given.searches().values() if record["method"] == "PFML"}
    assert made["searches"] == {"PFML": {"file": FILE, "trials": 16, "sha256": digest}}
    (there,) = stored.stored(given.notebook, path.parents[1])
    assert there.trials == {"PFML": 16, "ProxyAnchor": 0}


def test_a_table_is_named_whose_search_is_no_longer_that_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_RECORD", str(tmp_path / "results"))
    searched("10", "PFML")
    saved(params_of("10"))
    assert searches.outdated(tmp_path / "results") == {}
    (path,) = search.folder("small").glob("*.json")
    path.write_text(signed(search.read(path) | {"made": "by another"}))
    ((name, files),) = searches.outdated(tmp_path / "results").items()
    assert name.startswith("small/10_pfml_retrieval") and files == [path.name]


def test_a_search_begins_at_the_run_without_a_setting_of_a_notebook_that_varies_no_condition():
    """Notebook 48 has runs that end after one problem before those that go on."""
    values = {"profile": "small", "dataset": "cub-subset"}
    (wanted,) = searches.wanted([catalogue.find("48")], lambda study: study.configured(values), ["C2-CCP-L"])
    assert wanted["spec"].setting == "" and "projections" not in wanted["spec"].algorithm_options

    def own(*numbers):
        return searches.wanted(map(catalogue.find, numbers), lambda study: study.configured({"profile": "small"}))

    with pytest.raises(ValueError, match="35_meanfield_ablation_batch_size has no run of ProxyAnchor with the batch"):
        own("35")
    assert {"ProxyAnchor", "MFCWMS"} <= {wanted["about"]["method"] for wanted in own("35", "31")}


@pytest.mark.parametrize(
    "names, values, message",
    [(["PFML"], {}, "the notebooks train no PFML"), ([], {"profile": "quick"}, "searches are for profile 'small'")],
)
def test_what_cannot_be_searched_is_named(names, values, message):
    with pytest.raises(ValueError, match=message):
        searches.wanted([catalogue.find("50")], lambda study: study.configured(TINY | values), names)


def test_a_method_without_ranges_cannot_be_searched_and_ablations_of_published_settings_have_none(monkeypatch):
    assert [searched(number) for number in ("52", "55")] == [{}, {}]
    without = METHODS | {"PFML": dataclasses.replace(METHODS["PFML"], search_space=None)}
    monkeypatch.setattr(papers, "methods", lambda: without)
    with pytest.raises(ValueError, match="no search ranges for PFML"):
        searched("10", "PFML")


def test_the_command_searches_side_by_side_resumes_and_prints_what_it_found(capsys, monkeypatch):
    arguments = ["--profile", "small", "-p", "dataset", "glyphs"]
    assert cli.main(["tune", "10", "PFML", "ProxyAnchor", *arguments, "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()] == ["method", "PFML", "ProxyAnchor"]
    monkeypatch.setattr(search, "validation_metrics", lambda models: pytest.fail("searched again"))
    assert cli.main(["tune", "10", "PFML", "ProxyAnchor", *arguments]) == 0
    assert capsys.readouterr().out == printed
    assert cli.main(["tune", "10", "--jobs", "0", *arguments]) == 2
    assert cli.main(["tune", "10", "PFML", *arguments, "-p", "image_size", "16", "-p", "lr", "0.1"]) == 2
    assert "image_size" in capsys.readouterr().err


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_one_search_lets_the_others_end(monkeypatch, tmp_path, jobs):
    """In a process of its own nothing of this test's changes holds: a spec whose images are not there fails at once."""
    how = {"spec": specs("10", "PFML")[0].replace(dataset="cub"), "ranges": {}}
    how["about"] = {"method": "A", "methods": [], "conditions": {}}
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path / "absent"))
    with pytest.raises(ValueError, match=r"(?s)2 of 2 searches failed(?=.*  A: .*cub).*  B: .*cub"):
        searches.run([how | {"path": tmp_path / f"{name}.json"} for name in "AB"], jobs=jobs)
