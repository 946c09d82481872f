"""The README answers on its first screen, in few words, with what results/ says."""

import re

import pytest

from experiments.analysis import claims, comparing, stored
from experiments.analysis.judging import Verdict
from experiments.files import repository_root
from experiments.report import catalogue, costs, readme, verdicts

README = repository_root() / "README.md"


def test_the_first_screen_is_short_and_its_effects_are_those_of_the_ledger():
    text = README.read_text(encoding="utf8")
    first = text[: text.index("## Use one loss")]
    assert len(first.splitlines()) <= 60
    table = verdicts.comparisons()
    known = {(f"{row.effect:+.1f}", f"{row.low:.1f}", f"{row.high:.1f}") for row in table.itertuples()}
    stated = re.findall(r"([+−][\d.]+)(?: [A-Z]\S*)? \[(−?[\d.]+), (−?[\d.]+)\]", first)
    assert len(stated) > 6
    assert [effect for effect in stated if tuple(part.replace("−", "-") for part in effect) not in known] == []


def test_made_links_lead_somewhere():
    links = [link for part in readme.parts().values() for link in re.findall(r"\]\(([^)# ]+)[^)]*\)", part)]
    assert len(links) > 20
    assert [link for link in links if "://" not in link and not (repository_root() / link).exists()] == []


def test_the_state_counts_all_claims_and_names_what_is_decided():
    text, here = readme.state(), verdicts.here()
    counted = [re.findall(rf"^\|{word}\|(\d+)\|(\d+)\|", text, re.MULTILINE) for word in Verdict]
    assert sum(int(row[0][0]) for row in counted if row) == len(here)
    assert all(int(frozen) <= int(count) for row in counted for count, frozen in row)
    decided = [claim_id for claim_id, word in here.items() if word == Verdict.CONTRADICTED]
    assert [claim_id for claim_id in decided[: readme.SHOWN] if claim_id not in text] == []


def test_rankings_are_of_birds_cars_and_letters_where_these_are_run():
    ranked = readme.rankings()
    assert len(ranked) <= readme.PANELS
    for title, table in ranked.items():
        assert not set(table["method"]) & comparing.UNTRAINED and table["mean"].is_monotonic_decreasing, title
        assert table["method"].is_unique
    datasets = [claims.short_name(name) for name in readme.comparisons()]
    assert ("omniglot" in datasets) == any("handwritten letters" in title for title in ranked)


def test_a_data_set_is_compared_once_by_its_table_of_many_losses_and_most_seeds():
    for dataset, by_notebook in readme.comparisons().items():
        for name, chosen in by_notebook.items():
            assert set(chosen.table["dataset"]) == {dataset}
            alike = [other for other in stored.stored(name) if set(other.table["dataset"]) == {dataset}]
            many = [other for other in alike if len(set(other.table["method"]) - {"untrained", "random head"}) > 2]
            assert chosen.seeds == max(other.seeds for other in many if other.profile == chosen.profile)
            assert chosen.stem in [other.stem for other in many]


def test_the_cost_is_that_of_every_data_set_that_claims_name():
    table, total = costs.table(), readme.hours().sum()
    paper = table[(table["profile"] == "paper") & (table["paper"] != "together")]
    assert total["all"] == pytest.approx(paper["hours"].sum())
    assert total["tuning"] == pytest.approx(paper["tuning_hours"].sum())
    assert f"|{total['all']:.0f}|{total['tuning']:.0f}|" in readme.cost()
    for claim_id, test in catalogue.claims().items():
        planned = set(paper.loc[paper["notebook"] == test.notebook, "dataset"])
        named = {name for name in claims.named(claim_id) if name in costs.EARLY_STOP_STEPS}
        assert not planned or named <= planned, claim_id
