"""The methods of nivMF and notebooks 22 to 26; at the profile paper every run has the released settings, as the table
beside this file has them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.special
import scipy.stats
import torch
import torch.nn.functional as F
from planned import planned

from dmlrepro import metrics, vmf
from dmlrepro.losses import nivmf as losses
from experiments import studies
from experiments.analysis import judging
from experiments.methods import spec_of
from experiments.nivmf import certainty, cost, distances, normalizer, retrieval
from experiments.nivmf.claims import TESTS
from experiments.nivmf.methods import JOINT, METHODS
from experiments.nivmf.retrieval import TABLE_2
from experiments.report import catalogue, show
from experiments.training import batches, runs
from experiments.training.spec import RunSpec

LR = 1e-5  # of the network in every released run
RELEASED = pd.read_csv(Path(__file__).with_name("released_runs.csv"), dtype=str, keep_default_na=False)


@pytest.mark.parametrize("row", RELEASED.to_dict("records"), ids=lambda row: f"{row['dataset']}-{row['dim']}")
def test_a_run_of_table_2_is_the_released_command(row):
    _, specs = planned("20", "paper", dataset=row["dataset"], embedding_size=int(row["dim"]))
    scheduled = [spec for spec in specs if spec.setting == TABLE_2]
    assert [(spec.method, spec.seed) for spec in scheduled] == [(JOINT, seed) for seed in range(5)]
    spec, kappa0 = scheduled[0], float(row["kappa0"])
    assert (spec.dataset, spec.backbone, spec.embedding_size) == (row["dataset"], "resnet50.tv_in1k", int(row["dim"]))
    assert (spec.epochs, spec.steps, spec.batch_size) == (int(row["epochs"]), None, int(row["batch"]))
    assert (spec.lr_drop_epochs, spec.lr_drop) == (tuple(map(int, row["tau"].split())), float(row["gamma"]))
    assert (spec.optimizer, spec.lr, spec.weight_decay) == ("adam", LR, 4e-4)
    assert (spec.freeze_batchnorm, spec.samples_per_class, spec.proxies_from_class_means) == (True, 2, True)
    assert spec.loss_options == {
        "distance": "el_nivmf",
        "concentration": kappa0,
        "temperature": float(row["t0"]),
        "embedding_scale": float(row["last_layer_x"]),
        "num_samples": int(row["samples"]),
        "omega": float(row["omega"]),
    }
    assert spec.loss_lr == pytest.approx(
        {
            "probabilistic.proxies": float(row["proxy_lr_x"]) * LR,
            "probabilistic.log_concentrations": float(row["kappa_lr_x"]) * LR / kappa0,
            "probabilistic.log_temperature": float(row["t_lr_x"]) * LR,
        }
    )


def test_what_the_reader_gives_wins_and_a_backbone_without_a_known_scale_needs_one():
    given = {"omega": 2.0, "samples": 3, "embedding_scale": 7.0, "epochs": 4, "batch_size": 32}
    _, specs = planned("20", "paper", **given, lr_drop_epochs=[2], lr_drop=0.5)
    for spec in specs:
        if spec.method == JOINT:
            options = [spec.loss_options[name] for name in ("omega", "num_samples", "embedding_scale", "concentration")]
            assert (*options, spec.epochs, spec.batch_size) == (2.0, 3, 7.0, 18.0, 4, 32)
    assert {spec.lr_drop_epochs for spec in specs} == {(), (2,)}
    assert TABLE_2 not in {spec.setting for spec in planned("20", "paper", lr_drop_epochs=[])[1]}
    params, _ = planned("20", weights="none")
    with pytest.raises(ValueError, match=r"embedding_scale is known for conv4.*not for resnet18"):
        spec_of(METHODS["EL-nivMF"], params, backbone="resnet18")
    known = retrieval.Retrieval.configured({"embedding_scale": 3.0, "weights": "none"})
    assert spec_of(METHODS["EL-nivMF"], known, backbone="resnet18").loss_options["embedding_scale"] == 3


def test_a_scheduled_run_is_scored_by_nmi_too(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path))
    values = {"methods": [JOINT], "steps": 2, "seeds": 1, "batch_size": 16, "samples": 1, "lr_drop_epochs": [0.01]}
    notebook = catalogue.find("20")
    params = notebook.configured(values)
    specs = [spec.replace(images_per_class=2) for spec in notebook.specs(params)]
    table = notebook.table(runs.run_all(specs, jobs=1), params)
    (nmi,) = table[table["metric"] == "NMI"].to_dict("records")
    assert nmi["setting"] == TABLE_2 and 0 < nmi["value"] < 100
    assert set(table["setting"]) == {"", TABLE_2, "curve"}


@pytest.mark.parametrize("values", [{"backbone": "bn_inception"}, {"dataset": "sop"}, {"embedding_size": 64}])
def test_what_was_not_released_has_the_settings_of_the_most_alike(values):
    params, specs = planned("20", "paper", **values)
    spec = next(spec for spec in specs if spec.setting == TABLE_2)
    assert (spec.epochs, spec.loss_options["embedding_scale"]) == (250, 30 if "embedding_size" in values else 50)
    shown = {name: source for name, *_, source in show.settings(retrieval.Retrieval, spec, params)}
    assert "none was released for" in shown["loss.concentration"]


def judged(rows):
    table = studies.study_rows(distances.Distances.configured({}), rows)
    return judging.judge(table, TESTS, ["nivmf-15"])


def test_what_the_definitions_imply_holds_and_in_few_dimensions_the_likeness_to_l2_ends(monkeypatch):
    judgement = judged(distances.exact_rows(range(3)))
    rows = judgement.comparisons.set_index(["comparison", "metric"])["outcome"]
    like = rows[rows.index.get_level_values("metric") == "growth_over_l2"]
    assert set(rows.drop(like.index)) == {"supported"} == set(like)
    assert judgement.verdicts["verdict"].item() == "supported"
    monkeypatch.setattr(distances, "PAPER_DIM", 64)
    judgement = judged(distances.exact_rows(range(3)))
    like = judgement.comparisons.set_index("comparison")["outcome"]
    assert like["B-vMF;norm=10 vs 0.5"] == "supported"
    assert like["B-vMF;norm=1000 vs 0.5"] == "contradicted"  # its gradient is bounded, L2's grows without end
    assert judgement.verdicts["verdict"].item() == "mixed"


@pytest.mark.parametrize("method", ["L2", "B-vMF"])
def test_logits_by_cosine_turn_one_proxy_each(method):
    generator = torch.Generator().manual_seed(0)
    proxies = torch.randn(4, 8, dtype=torch.float64, generator=generator)
    embedding = torch.randn(8, dtype=torch.float64, generator=generator)
    logits, cosines = distances.logits_by_cosine(method, embedding, proxies)
    torch.testing.assert_close(cosines, F.cosine_similarity(proxies, embedding[None], dim=1))
    plain = -distances._distance(method)(embedding[None], proxies)[0]
    torch.testing.assert_close(logits, plain / distances.COMPARABLE[method])
    jacobian = torch.stack([torch.autograd.grad(x, cosines, retain_graph=True)[0] for x in logits])
    assert (jacobian.diagonal() > 0).all()
    assert jacobian.fill_diagonal_(0).abs().max() < 1e-12


def test_a_wrong_factor_in_a_distance_and_a_cosine_that_sees_the_norm_are_noticed(monkeypatch):
    l2, cosine = losses.l2_distance, losses.cosine_distance
    monkeypatch.setattr(losses, "l2_distance", lambda z, p: l2(z, p) / 2)
    errors = [row["value"] for row in distances.exact_rows(range(2)) if row["metric"] == "gradient_error"]
    assert sum(error > 0.1 for error in errors) == 2  # L2's, not Cosine's
    monkeypatch.setattr(losses, "cosine_distance", lambda z, p: cosine(z, p) * z.norm(dim=1, keepdim=True) ** 0.01)
    values = [r["value"] for r in distances.exact_rows([0]) if r["method"] == "Cosine" and "norm" in r["metric"]]
    assert min(values) > 1e-3


def test_gradient_scales_are_the_factors_of_equations_8_and_9():
    generator = torch.Generator().manual_seed(0)
    kappa, t, norms = distances.PROXY_NORM, distances.COMPARABLE, distances.GROWN
    proxies, (direction,) = kappa * distances._directions(5, generator), distances._directions(1, generator)
    expected = {
        "Cosine": torch.full_like(norms, 1 / t["Cosine"]),
        "L2": 2 * kappa * norms / t["L2"],
        "KL-vMF": kappa * vmf.mean_resultant_length(norms, 64),
    }
    for method, scale in expected.items():
        found = distances.gradient_scale(method, direction, proxies)
        torch.testing.assert_close(found, scale, rtol=1e-9, atol=0)


def test_the_error_of_the_fit_is_that_of_scipys_bessel_function():
    kappa = np.arange(10, 51)
    exact = 63 * np.log(kappa) - 64 * np.log(2 * np.pi) - np.log(scipy.special.ive(63, kappa)) - kappa
    relative = (127 - 0.01909 * kappa - 0.003355 * kappa**2) / exact - 1
    rows = normalizer._fit_errors(128)
    assert rows["rms_relative_error"] == pytest.approx(100 * np.sqrt(np.mean(relative**2)), rel=1e-6)
    assert rows["slope_exceeds_1_at"] == pytest.approx((1 - 0.01909) / (2 * 0.003355))


@pytest.mark.parametrize("dim", [128, 512])
def test_the_best_concentration_has_the_samples_cosine_as_its_mean_cosine(dim):
    best = normalizer.best_concentration(dim, "exact")
    assert vmf.mean_resultant_length(torch.tensor(best, dtype=torch.float64), dim).item() == pytest.approx(
        0.9, abs=1e-9
    )
    assert normalizer.best_concentration(dim, "quadratic") < best / 4


@pytest.fixture
def batch():
    return torch.randint(0, 256, (5, 3, 24, 24), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize("kind", ["crop", "occlusion", "blur"])
def test_degrading_by_nothing_changes_nothing_and_is_repeatable(kind, batch):
    assert torch.equal(certainty.Degrade(kind, 0.0)(batch), batch)
    once, twice = (certainty.Degrade(kind, 0.6, seed=3)(batch) for _ in range(2))
    assert once.dtype == torch.uint8 and once.shape == batch.shape
    assert torch.equal(once, twice) and not torch.equal(once, batch)


def test_occlusion_covers_its_share_and_stronger_covers_more_of_the_same(batch):
    covered = [(certainty.Degrade("occlusion", s)(batch) != batch).any(1) for s in (0.2, 0.5, 0.8)]
    for share, mask in zip((0.2, 0.5, 0.8), covered):
        assert mask.double().mean().item() == pytest.approx(share, abs=0.06)
    assert (covered[0] <= covered[1]).all() and (covered[1] <= covered[2]).all()


def test_a_crop_shows_its_share_of_the_image_and_blur_keeps_the_mean_and_lowers_the_contrast(batch):
    ramp = torch.arange(0, 200, 2, dtype=torch.uint8).expand(1, 1, 100, 100)
    shown = certainty.Degrade("crop", 0.75)(ramp)[0, 0].float()
    assert (shown[0, -1] - shown[0, 0]).item() == pytest.approx(0.5 * 198, abs=3)
    assert shown.std(0).max() == 0  # rows are alike, as in the image: x and y are not mixed up
    contrasts = [certainty.Degrade("blur", s)(batch).float().std().item() for s in (0.0, 0.2, 0.4, 0.8)]
    assert contrasts == sorted(contrasts, reverse=True)
    assert certainty.Degrade("blur", 0.4)(batch).float().mean() == pytest.approx(batch.float().mean(), abs=3)


def test_rank_correlation_is_spearmans_and_auroc_within_classes_sees_differences_there_alone():
    norms, strengths = torch.rand(5, 7, generator=torch.Generator().manual_seed(0)), (0.0, 0.4, 0.2, 0.8, 0.6)
    expected = np.mean([scipy.stats.spearmanr(column, strengths).statistic for column in norms.T])
    assert certainty._rank_correlation(norms, strengths) == pytest.approx(expected)
    run = fake_run(lambda labels, noise: 1.0 + labels)
    labels = studies.evaluated_labels(run)[0].numpy()
    auroc = certainty._auroc(run, labels > np.median(labels))
    assert auroc["norm_auroc"] == 1 and auroc["norm_auroc_within_class"] == pytest.approx(0.5, abs=0.05)
    assert certainty._auroc(run, labels >= 0) == {}
    run = fake_run(lambda labels, noise: (1.0 + labels) * (1 + 0.01 * noise))
    auroc = certainty._auroc(run, run.noise.numpy() > 0.5)
    assert auroc["norm_auroc"] < 0.6 and auroc["norm_auroc_within_class"] > 0.85


def fake_run(norm_of):
    """A run whose test embeddings are random directions with norms that a function of labels and noise gives."""
    spec = RunSpec(dataset="glyphs", images_per_class=4, steps=1, method="EL-nivMF")
    manifest = batches.load_dataset(spec)
    labels = torch.from_numpy(manifest.labels[manifest.indices("test")])
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(len(labels), generator=generator)
    directions = F.normalize(torch.randn(len(labels), 8, generator=generator), dim=1)
    return SimpleNamespace(spec=spec, embeddings=norm_of(labels, noise)[:, None] * directions, noise=noise)


def test_norm_and_recall_of_degraded_images_are_compared_with_those_of_the_images(monkeypatch):
    run = fake_run(lambda labels, noise: 1.0 + noise)
    monkeypatch.setattr(certainty, "degraded_embeddings", lambda run, kind, strength: (1 - strength) * run.embeddings)
    found = certainty.told_by_norms(run, run, ["blur"], [0.0, 0.4, 0.8])
    recall = metrics.retrieval(run.embeddings, studies.evaluated_labels(run)[0])["R@1"]
    assert 0 < recall < 1 and found[0] == ("", {"blur_correlation": pytest.approx(-1)})
    assert found[1:4] == [
        (f"corruption=blur;strength={s:g}", {"relative_norm": pytest.approx(1 - s), "R@1": pytest.approx(recall)})
        for s in (0.0, 0.4, 0.8)
    ]


def test_euclidean_retrieval_sees_norms_and_diversities_are_those_of_the_metrics():
    run = fake_run(lambda labels, noise: 1.0 + labels % 3 + noise)
    labels = studies.evaluated_labels(run)[0]
    how = {"ks": run.spec.ks, "measures": distances.MEASURES}
    found = distances._euclidean_retrieval(run)
    assert found == metrics.retrieval(run.embeddings, labels, distance="euclidean", **how)
    assert found["R@1"] != metrics.retrieval(run.embeddings, labels, **how)["R@1"]
    within, across = (metrics.class_diversity(run.embeddings, labels, of) for of in ("within", "across"))
    diversities = {"class_diversity": within, "class_diversity_across": across}
    diversities["feature_diversity"] = metrics.feature_diversity(run.embeddings)
    assert distances.diversities_of(run, "test") == diversities and within != across


def test_ratios_are_timed_for_every_method_and_find_their_claim(monkeypatch):
    for name, value in {"BACKBONE": "conv4", "EMBEDDING_SIZE": 16, "CLASSES": 5}.items():
        monkeypatch.setattr(cost, name, value)
    small = {"cost_image_size": 16, "network_images": 2, "sample_counts": [1, 5], "repetitions": 2, "batch_size": 8}
    small |= {"backbone": "squeezenet1_1", "weights": "imagenet"}  # as at small; the timed networks are untrained
    params = cost.Cost.configured(small)
    timings = cost.timed_ratios(params)
    assert (timings["value"] > 0).all()
    steps = timings[timings["metric"] == "seconds_ratio"]
    assert set(zip(steps["method"], steps["setting"])) == {
        ("EL-vMF", ""), ("B-vMF", ""), ("KL-vMF", ""), ("EL-nivMF", "samples=1"), ("EL-nivMF", "samples=5")
    }  # fmt: skip
    line = judging.judge(timings, TESTS, ["nivmf-09"]).verdicts.iloc[0]
    assert (line["verdict"], line["dataset"], line["backbone"]) == ("not run", "synthetic", "conv4")
    assert line["reason"] == "another network"

    def steps(calls, *_):
        seconds = [(*call, 0, 2.0 + number, 4.0) for number, call in enumerate(calls)]  # ProxyNCA++ is the first
        return pd.DataFrame(seconds, columns=[*cost.timing.RUN, "loss", "network"]).set_index(cost.timing.RUN)

    retrieving = pd.DataFrame({"ProxyNCA++": [2.0], "EL-nivMF": [3.0]})
    monkeypatch.setattr(cost.timing, "steps", steps)
    monkeypatch.setattr(cost.timing, "in_turn", lambda *_, **__: retrieving.rename_axis("seed"))
    values = cost.timed_ratios(params).groupby("metric")["value"].agg(list)
    assert values["seconds_ratio"] == pytest.approx([(2 + number + 4) / 6 for number in range(1, 6)])
    assert values["retrieval_seconds_ratio"] == [1.5]


def test_more_samples_give_a_steadier_loss():
    params = cost.Cost.configured({"steps": 3})
    spec = spec_of(METHODS["EL-nivMF"], params, loss_options={"concentration": 5.0}, images_per_class=4)
    few, many = cost.estimate_spread(runs.run(spec), (1, 20))
    assert few["loss_sd"] > 1e-3, "each call draws anew"
    assert many["loss_sd"] < few["loss_sd"] / 2
    assert many["loss_mean"] == pytest.approx(few["loss_mean"], abs=0.1)
