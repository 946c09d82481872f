"""Answers are written by hand, for verdicts that are named beside them: where one differs a person reads them again."""

import csv

from experiments.files import repository_root


def rows(*path: str) -> list[dict[str, str]]:
    with repository_root().joinpath(*path).open(encoding="utf8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_notebook_has_a_short_answer_that_was_written_for_its_verdicts():
    answers = {row["notebook"]: row for row in rows("data", "answers.csv")}
    assert sorted(answers) == sorted(path.stem for path in (repository_root() / "notebooks").glob("*.ipynb"))
    verdicts: dict[str, dict[str, str]] = {name: {} for name in answers}
    for line in rows("results", "claims.csv"):  # the line that decides comes first
        if line["decides"] == "yes" and line["scale"] == "here":
            said = f"{line['claim_id']} {line['verdict']} ({line['k']} of {line['n']})"
            verdicts[line["notebook"]].setdefault(line["claim_id"], said)
    written_for = {name: "; ".join(own.values()) for name, own in verdicts.items()}
    assert {name: row["verdicts"] for name, row in answers.items()} == written_for
    assert all(len(row["question"].split()) <= 14 and len(row["answer"].split()) <= 30 for row in answers.values())
