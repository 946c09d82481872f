"""A third paper is a folder: nothing that lists papers has to be touched, because nothing lists them."""

import functools
import importlib
import sys

import pytest

import experiments
from experiments import cli, papers
from experiments.across import ledger
from experiments.analysis import claims
from experiments.report import catalogue, verdicts
from experiments.training import search

FILES = {"__init__": ""}
FILES["methods"] = """
from experiments.methods import BASELINES, Method
from experiments.training.search import Range

MARGIN = {"margin": Range(0.1, 0.4)}
METHODS = BASELINES | {
    "Toy": Method("Toy", "baselines.triplet", batches="pairs", search_space=MARGIN, color="#123456")
}
"""
FILES["claims"] = """
from experiments.analysis.claims import ClaimTest, higher

TESTS = {"toy-01": ClaimTest("toy-01", "99_toy_retrieval", (higher("Toy", "Triplet"),), "0.5 points")}
"""
FILES["retrieval"] = """
from experiments.methods import expand_seeds, pick, search_each, spec_of
from experiments.params import Params
from experiments.study import Study
from experiments.toy.claims import TESTS
from experiments.toy.methods import METHODS


class ToyParams(Params):
    methods: tuple[str, ...] = ("untrained", "Toy", "Triplet")
    protocol: str
    search_trials: int


def retrieval(params):
    specs = [spec_of(method, params) for method in pick(METHODS, params.methods)]
    return expand_seeds([spec for spec, _ in search_each(specs, METHODS, params)], params)


Retrieval = Study("99_toy_retrieval", ToyParams, retrieval, claims=TESTS, paper="toy")
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    room = tmp_path / "rooms" / "toy"
    room.mkdir(parents=True)
    for name, text in FILES.items():
        (room / f"{name}.py").write_text(text)
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(room.parent)])
    importlib.invalidate_caches()
    yield
    for name in [name for name in sys.modules if name.startswith("experiments.toy")]:
        del sys.modules[name]
    del experiments.toy


def test_the_catalogue_finds_its_notebook_its_claims_and_its_colour(toy):
    known, tests = catalogue.studies(), catalogue.claims()
    assert list(known) == sorted(known) and "10_pfml_retrieval" in known
    assert catalogue.find("99") is catalogue.find("notebooks/99_toy_retrieval.ipynb")
    assert catalogue.find("99").name == "99_toy_retrieval"
    assert "toy-01" in tests and "pfml-01" in tests
    assert papers.names().color("Toy") == "#123456"


def test_the_ledger_and_the_first_screen_have_it(toy, monkeypatch):
    paper, claim, short = claims.papers()["plm"], claims.stated()["plm-01"], claims.short_statements()
    known = claims.papers() | {"toy": paper | {"paper": "toy", "name": "Toy paper"}}
    stated = claims.stated() | {"toy-01": claim | {"paper": "toy"}}
    for name, rows in (("papers", known), ("stated", stated), ("short_statements", short | {"toy-01": "plays well"})):
        monkeypatch.setattr(claims, name, lambda rows=rows: rows)
    for by_claim in (verdicts.deciding, verdicts.here):  # of lines that stay; later tests have what was before
        monkeypatch.setattr(verdicts, by_claim.__name__, functools.cache(by_claim.__wrapped__))
    (axis,) = ledger.squares(verdicts.lines(), verdicts.here()).axes
    assert "Toy paper" in [label.get_text() for label in axis.get_yticklabels()]
    assert verdicts.here()["toy-01"] == "not run"


def test_a_baseline_is_the_run_that_other_papers_have(toy):
    def runs(name, method):
        notebook = catalogue.find(name)
        given = {"methods": ["untrained", "Triplet"], "seeds": 1} if name == "10" else {}
        return [spec for spec in notebook.specs(notebook.configured(given)) if spec.method == method]

    for method in ("untrained", "Triplet"):
        theirs = [spec for spec in runs("10", method) if spec.protocol == "conventional" and not spec.setting]
        assert runs("99", method) == [spec.replace(keep_history=False, eval_every=None) for spec in theirs]


def test_config_shows_it(toy, capsys):
    assert cli.main(["config", "99"]) == 0
    assert "Toy" in capsys.readouterr().out


def test_the_search_takes_its_ranges(toy, monkeypatch):
    tried = []

    def score(models):
        tried.append(models[0])
        return [{"MAP@R": 0.5}] * len(models)

    monkeypatch.setattr(search, "validation_metrics", score)
    notebook = catalogue.find("99")
    values = {"protocol": "mlrc", "search_trials": 2, "methods": ["Toy"], "seeds": 1}
    specs = notebook.specs(notebook.configured(values))
    assert len(tried) == 2 and all(0.1 <= spec.loss_options["margin"] <= 0.4 for spec in tried)
    assert len(specs) == 4 and {spec.loss_options["margin"] for spec in specs} <= {
        spec.loss_options["margin"] for spec in tried
    }
