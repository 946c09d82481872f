"""Tables of pages hold what results/ says, of every claim and notebook, and nothing that people wrote is touched."""

import csv
import re

import nbformat
import pytest

from experiments.analysis import claims, robustness, saving, stored
from experiments.analysis.judging import Verdict
from experiments.files import repository_root
from experiments.report import catalogue, costs, pages, verdicts

ROOT = repository_root()


def rows(table: str) -> list[list[str]]:
    """The cells of the rows of a Markdown table below its head."""
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines()[2:]]


@pytest.mark.slow
def test_committed_pages_say_what_results_say(monkeypatch):
    monkeypatch.delenv("DMLREPRO_RECORD")  # what runs are planned with depends on the committed searches
    pages.forget()
    stale = [path for path, text in pages.made().items() if not path.exists() or path.read_text("utf8") != text]
    assert [str(path.relative_to(ROOT)) for path in stale] == [], "python -m experiments report"


def test_tables_are_exchanged_what_is_written_stays_and_a_text_is_shown_as_it_is(monkeypatch):
    monkeypatch.setitem(pages.TABLES, "a", lambda argument="": f"new {argument}".strip())
    text = "before\n<!-- begin a -->\nold\n<!-- end -->\nbetween\n<!-- begin a x -->\n<!-- end -->\nafter\n"
    made = pages.filled(text)
    assert made == text.replace("old", "new").replace("a x -->\n", "a x -->\nnew x\n") and pages.filled(made) == made
    with pytest.raises(ValueError, match=r"no table 'b'; there are counts, ledger"):
        pages.filled("<!-- begin b -->\n<!-- end -->")
    assert pages.cell("a|b < c_1 * $x$") == r"a\|b &lt; c\_1 \* \$x\$"


def test_every_claim_has_a_row_with_its_verdict_in_ledger_matrix_and_the_page_of_its_paper():
    here, order = verdicts.here(), list(claims.stated())
    assert set(here) == set(order) and set(here.values()) <= set(Verdict)
    ledger = rows(pages.ledger_table())
    assert [row[0] for row in ledger] == [row[0] for row in rows(pages.matrix_table())] == order
    assert all(row[2].startswith(here[row[0]]) and len(row) == 6 for row in ledger)
    counted = rows(pages.counts_table())
    assert sum(int(row[1]) for row in counted) == len(order)
    assert all(int(row[2]) <= int(row[1]) == len(row[3].split(", ")) for row in counted)
    of_papers = [row for paper in claims.papers() for row in rows(pages.TABLES["verdicts"](paper))]
    assert [(row[0].split()[0], row[1]) for row in of_papers] == [(row[0], row[2]) for row in ledger]


def test_the_answer_that_a_person_wrote_stands_below_the_title_with_the_verdicts():
    tops = {path.stem: nbformat.read(path, 4).cells[:2] for path in (repository_root() / "notebooks").glob("*.ipynb")}
    for name, cells in tops.items():
        assert cells[1].metadata.get("tags") == [pages.ANSWER], name
        assert cells[1].source == pages.top_of(name), "python -m experiments report"


def test_effects_and_counts_are_those_of_the_ledger_in_the_readme_too():
    line = verdicts.deciding()["nivmf-12"]
    ((_, verdict, effect, robust),) = rows(pages.verdict_table(["nivmf-12"]))
    assert verdict == f"{line.verdict} ({line.k} of {line.n})"
    with (ROOT / "results" / "claims.csv").open(encoding="utf8", newline="") as file:
        of_claim = [row for row in csv.DictReader(file) if row["claim_id"] == "nivmf-12" and row["decides"] == "yes"]
    checks = [of_claim[0][name] for name in robustness.CHECKS if of_claim[0][name]]
    assert robust == f"{checks.count('yes')}/{len(checks)}" and checks
    low, high = (f"{value:+.1f}" for value in (line.low, line.high))
    assert effect == rf"EL-nivMF at normalizer = none vs EL-nivMF: R@1 {line.effect:+.1f} \[{low}, {high}\]"
    text = (ROOT / "README.md").read_text(encoding="utf8")
    known = {(f"{row.effect:+.1f}", f"{row.low:.1f}", f"{row.high:.1f}") for row in verdicts.comparisons().itertuples()}
    stated = re.findall(r"([+−][\d.]+)(?: [A-Z]\S*)? \[(−?[\d.]+), (−?[\d.]+)\]", text)
    assert len(stated) > 6
    assert [effect for effect in stated if tuple(part.replace("−", "-") for part in effect) not in known] == []


def test_a_notebook_shows_the_tables_that_the_ledger_decides_by():
    for study in catalogue.studies().values():
        lines = [verdicts.deciding()[claim_id] for claim_id in study.settled]
        assert {*stored.deciding(study.name)} == {line.stem for line in lines if line is not None}, study.name


def test_a_leaderboard_has_the_numbers_of_its_table_and_the_highest_on_top():
    title = "Omniglot, small CNN from scratch, 600 steps, 5 seeds, conventional protocol"
    board = pages.leaderboards()[title]
    name = "10_pfml_retrieval--dataset=omniglot,mlrc_steps=0,small_dim=0,steps=600.csv"
    table = saving.read(ROOT / "results" / "small" / name)
    own = table[(table["method"] == "PFML") & (table["setting"] == "") & (table["selection"] == "last")]
    (row,) = board[board["method"] == "PFML"].to_dict("records")
    assert row["R@1"] == tuple(own.loc[own["metric"] == "R@1", "value"]) and len(row["R@1"]) == 5
    assert board["R@1"].map(pages._mean).is_monotonic_decreasing
    assert set(board.loc[board["untrained"], "method"]) == {"untrained"}


def test_the_cost_is_that_of_every_data_set_that_claims_name():
    table, total = costs.table(), rows(pages.cost_table())[-1]
    paper = table[(table["profile"] == "paper") & (table["paper"] != "together")]
    assert total[-2:] == [f"{paper[name].sum():,.0f}" for name in ("hours", "tuning_hours")]
    for claim_id, test in catalogue.claims().items():
        planned = set(paper.loc[paper["notebook"] == test.notebook, "dataset"])
        named = {name for name in claims.named(claim_id) if name in costs.EARLY_STOP_STEPS}
        assert not planned or named <= planned, claim_id


def test_a_ledger_without_any_table_has_its_columns_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.analysis.stored.repository_root", lambda: tmp_path)
    monkeypatch.setattr(verdicts, "repository_root", lambda: tmp_path)
    columns = (*verdicts.COLUMNS, *robustness.CHECKS)
    try:
        assert verdicts.write() and not verdicts.write()
        assert (tmp_path / "results" / "claims.csv").read_text() == ",".join(columns) + "\n"
    finally:
        verdicts.forget()
