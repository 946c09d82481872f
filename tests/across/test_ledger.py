"""The ledger shows what results/ says now, of every claim there is, and its check finds what does not agree."""

import math

import pandas as pd
import pytest

from experiments.report import verdicts


def moved(digits):
    """By so many units of the last of four printed digits."""
    return lambda value: value + digits * 10.0 ** (math.floor(math.log10(abs(value))) - 3)


@pytest.mark.parametrize(
    ("column", "change", "differs"),
    [
        ("effect", moved(0.94), False),
        ("effect", moved(1.9), True),
        ("low", lambda value: -value, True),
        ("verdict", lambda value: "supported", True),
        ("label", lambda value: value + ", more", True),
    ],
)
def test_a_line_that_is_not_what_results_say_is_found(column, change, differs, tmp_path, monkeypatch, capsys):
    (path, text), *others = verdicts.made().items()
    table = pd.read_csv(path, keep_default_na=False, na_values={"effect": "", "low": ""})
    line = table.index[table["claim_id"] == "pfml-01"][0]
    assert table.loc[line, "verdict"] != "supported"
    table.loc[line, column] = change(table.loc[line, column])
    table.to_csv(tmp_path / "claims.csv", index=False)
    monkeypatch.setattr(verdicts, "made", lambda: {tmp_path / "claims.csv": text, **dict(others)})
    verdicts.check()
    assert ("no, not for pfml-01" in capsys.readouterr().out) == differs
    monkeypatch.setattr(verdicts, "made", lambda: {tmp_path / "absent.csv": text, **dict(others)})
    assert verdicts.differences()[0] == "all claims"


def test_a_line_that_is_missing_is_found_by_its_claim(tmp_path, monkeypatch):
    (_, text), *others = verdicts.made().items()
    lines = text.splitlines(keepends=True)
    (tmp_path / "claims.csv").write_text("".join(line for line in lines if not line.startswith("pfml-02,")))
    monkeypatch.setattr(verdicts, "made", lambda: {tmp_path / "claims.csv": text, **dict(others)})
    assert verdicts.differences() == ["pfml-02"]
    for content in (b"", b"\n", b"\xff", b"claim_id\n", b'"'):
        (tmp_path / "claims.csv").write_bytes(content)
        assert verdicts.differences()
