"""The benchmark's two forms of MFCWMS agree, its limits can be missed."""


def test_forms_agree(benchmark, monkeypatch):
    assert benchmark.disagreement("tiny") < 1e-5
    plain = benchmark.dense
    monkeypatch.setattr(benchmark, "dense", lambda loss, x, y: plain(loss, x, y) + x.square().mean())
    assert benchmark.disagreement("tiny") > 1e-3
