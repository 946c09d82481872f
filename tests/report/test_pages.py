"""What pages say of results/ is what results/ says: they are made again and compared."""

import dataclasses
import re
import shutil

import pytest

from experiments.analysis import claims, robustness, saving, stored
from experiments.analysis.judging import Verdict
from experiments.analysis.provenance import record, seal
from experiments.files import repository_root
from experiments.report import catalogue, pages, verdicts


@pytest.fixture
def anew():
    """No made text is remembered before the test, nor after it."""
    pages.forget()
    yield
    pages.forget()


@pytest.mark.slow
def test_committed_pages_say_what_results_say(anew, monkeypatch):
    monkeypatch.delenv("DMLREPRO_RECORD")  # what runs are planned with depends on the committed searches
    names = [str(path.relative_to(repository_root())) for path in pages.stale()]
    assert names == [], "python -m experiments report"


@pytest.mark.parametrize("name", catalogue.studies())
def test_every_notebook_says_what_it_found_below_its_question(name):
    cells = pages._notebook(name)["cells"]
    tags = [tuple(cell["metadata"].get("tags", ())) for cell in cells]
    assert tags.index((pages.FINDINGS,)) == (2 if name == "00_tour" else 1)
    assert pages.findings(name), "no sentence has the rows that it needs"


@pytest.mark.parametrize(
    "name", [name for name, study in catalogue.studies().items() if study.findings and study.saves]
)
def test_findings_of_any_choice_of_methods_are_sentences_or_left_out(name):
    findings = catalogue.find(name).findings
    for saved in stored.stored(name):
        methods = saved.table["method"]
        before = [method for method in ("untrained", "random head") if (methods == method).any()]
        for method in methods.unique():
            alone, with_start, others = methods == method, methods.isin([method, *before]), methods != method
            for chosen in (alone, with_start, others):
                said = stored.say(saved.table[chosen], findings)
                assert not [text for text in said if re.search(r"\bnan\b", text) or not text.endswith((".", "!"))]


def test_promises_have_what_came_of_them_or_say_that_nothing_did(monkeypatch):
    rows = pages.promises().splitlines()[2:]
    assert len(rows) == len(pages.PROMISES) and not any("nothing by" in row for row in rows)
    monkeypatch.setattr(pages, "findings", lambda name: [("birds", [stored.OLDER])])
    assert all("nothing by the present code" in row for row in pages.promises().splitlines()[2:])


def test_a_number_that_changed_makes_its_pages_stale(tmp_path, monkeypatch, anew):
    before = pages.findings("10_pfml_retrieval")
    copy = tmp_path / "results"
    shutil.copytree(repository_root() / "results" / "quick", copy / "quick")
    path = copy / "quick" / "10_pfml_retrieval.csv"
    table = saving.read(path)
    table.loc[(table["method"] == "PFML") & (table["metric"] == "R@1") & (table["setting"] == ""), "value"] += 1
    made = record(path)
    path.write_text(saving.to_csv(table), encoding="utf8")
    seal(path, made)  # it was saved so, not edited by hand
    monkeypatch.setattr(stored, "repository_root", lambda: tmp_path)
    pages.forget()
    said = dict(pages.findings("10_pfml_retrieval"))
    assert said and any(said[name] != sentences for name, sentences in before if name in said)


def test_a_ledger_without_any_table_has_its_columns_alone(tmp_path, monkeypatch, anew):
    monkeypatch.setattr(stored, "repository_root", lambda: tmp_path)
    monkeypatch.setattr(verdicts, "repository_root", lambda: tmp_path)
    assert verdicts.write() and not verdicts.write()
    header = ",".join((*verdicts.COLUMNS, *robustness.CHECKS))
    assert (tmp_path / "results" / "claims.csv").read_text() == header + "\n"


def test_a_page_without_the_lines_between_which_a_made_part_stands_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# dmlrepro\n")
    with pytest.raises(ValueError, match=r"page\.md lacks the lines .*begin answers: made by"):
        pages.filled(page, {"answers": "made"})


def test_made_parts_are_exchanged_and_what_is_written_stays(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin a: made by python -m experiments report -->\nold\n<!-- end a -->\nafter\n")
    text = pages.filled(page, {"a": "new"})
    assert text == page.read_text().replace("old", "new") and pages.made_part(text, "a") == "\nnew\n"
    assert pages.made_part(text, "b") is None


def test_each_claim_has_a_verdict_at_the_papers_scale_and_one_here():
    assert set(verdicts.here()) == set(claims.stated()) and set(verdicts.here().values()) <= set(Verdict)
    assert pages._at_papers_scale("10_pfml_retrieval") == "not run"
    text = pages.findings_text("10_pfml_retrieval")
    assert "Verdicts here: pfml-01 " in text and "At the papers' scale: not run." in text


def test_the_table_of_an_older_version_may_name_parameters_that_are_gone(monkeypatch):
    name = "26_nivmf_cost_and_samples"
    older = [dataclasses.replace(saved, parameters=saved.parameters | {"gone": 1}) for saved in stored.stored(name)]
    monkeypatch.setattr(stored, "stored", lambda _, but: older)
    assert any(len(whole.table) > len(saved.table) for whole, saved in zip(catalogue.find(name).in_results(), older))
