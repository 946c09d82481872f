"""The benchmark's two forms of MFCWMS agree, its limits can be missed."""


def test_forms_agree(benchmark, monkeypatch):
    assert benchmark.disagreement("tiny") < 1e-5
    plain = benchmark.dense
    monkeypatch.setattr(benchmark, "dense", lambda loss, x, y: plain(loss, x, y) + x.square().mean())
    assert benchmark.disagreement("tiny") > 1e-3


def rows(benchmark):
    """A table that keeps every limit."""
    shape = {"case": "sop", **benchmark.CASES["sop"]._asdict()}
    seconds = {"MFCont": 1.1, "MFCWMS": 1.9, "NormalizedSoftmax": 1.0, "matmul": 1.0}
    memory = {"MFCont": 100.0, "MFCWMS": 190.0, "dense": 2000.0}
    table = [shape | {"form": form, "metric": "seconds", "value": value} for form, value in seconds.items()]
    table += [shape | {"form": form, "metric": "megabytes", "value": value} for form, value in memory.items()]
    for form, exponent in (("Cont", 2.0), ("CWMS", 1.9), ("MFCont", 1.0), ("MFCWMS", 1.2)):
        whole = {"case": "growth", "classes": 100, "dim": 64, "form": form, "metric": "seconds"}
        table += [whole | {"batch": n, "value": 1e-6 * n**exponent} for n in benchmark.SIZES["sop"]]
    return table


def test_every_limit_is_judged(benchmark, capsys):
    table = rows(benchmark)
    assert benchmark.judge(table)
    printed = capsys.readouterr().out
    assert "MFCWMS: seconds over the matmul's 1.9 (limit: at most 2)" in printed
    assert "Cont: exponent less that of MFCont 1 (limit: at least 0.3)" in printed
    worse = {"MFCont": 1.3, "MFCWMS": 2.1}
    for i, row in enumerate(table[:2]):
        assert not benchmark.judge([*table[:i], row | {"value": worse[row["form"]]}, *table[i + 1 :]])
    for value in (201.0, 50000.0):
        changed = [
            row | {"value": value} if row["metric"] == "megabytes" and row["form"] == "MFCWMS" else row for row in table
        ]
        assert not benchmark.judge(changed)
    for form, exponent in (("MFCont", 1.4), ("MFCWMS", 1.7), ("Cont", 1.2)):
        grown = [
            row | {"value": 1e-6 * row["batch"] ** exponent} if (row["case"], row["form"]) == ("growth", form) else row
            for row in table
        ]
        assert not benchmark.judge(grown)
