"""Every measure against a loop written from its definition, the metric of batches, and what bad input is told."""

import io
import itertools
import math
import pickle
import sys
import warnings

import numpy as np
import pytest
import torch
import torchmetrics
from device_work import LargestTensor
from scipy.spatial.distance import cdist, pdist
from scipy.stats import entropy
from sklearn.cluster import KMeans

from dmlrepro import metrics
from dmlrepro import retrieval as ranking

KS, EVERY = (1, 2, 5), ranking.MEASURES


def random_set(seed, size=40, dim=3, classes=7):
    """Overlapping classes of unequal size, one of them a single item; raw float32 embeddings."""
    generator = np.random.default_rng(seed)
    labels = np.concatenate([generator.integers(0, classes, size - 1) * 3, [100]])
    points = generator.normal(size=(size, dim)) + 1.5 * generator.normal(size=(101, dim))[labels]
    return torch.tensor(points, dtype=torch.float32), torch.tensor(labels)


def literal_retrieval(queries, labels, gallery=None, gallery_labels=None, distance="cosine"):
    """All pairs in NumPy: each list sorted by (distance, index), every measure by its definition."""
    own = gallery is None
    gallery, gallery_labels = (queries, labels) if own else (gallery, gallery_labels)
    apart, rows = cdist(queries, gallery, distance).round(9), []
    if own:
        np.fill_diagonal(apart, np.inf)
    for label, ranks in zip(labels, apart.argsort(axis=1, kind="stable")[:, : len(gallery) - own]):
        relevant = (gallery_labels[ranks] == label).numpy()
        if not (total := relevant.sum()):
            continue
        precisions = relevant * relevant.cumsum() / np.arange(1, len(relevant) + 1)
        row = {f"R@{k}": relevant[:k].any() for k in KS} | {"P@1": relevant[0], "RP": relevant[:total].mean()}
        row |= {"MAP@R": precisions[:total].sum() / total, "mAP@1000": precisions[:1000].sum() / min(total, 1000)}
        rows.append(row | {"mAP@1000/class_size": precisions[:1000].sum() / (total + own)})
    return {name: np.mean([row[name] for row in rows]) for name in rows[0]} | {"excluded": len(queries) - len(rows)}


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("seed", range(4))
def test_retrieval_equals_the_loop(seed, distance):
    """Among the queries themselves, and in a gallery that lacks two of their classes."""
    embeddings, labels = random_set(seed)
    gallery, gallery_labels = random_set(seed + 50, size=60, classes=9)
    gallery = gallery, gallery_labels + 6
    expected = literal_retrieval(embeddings, labels, distance=distance)
    assert expected["excluded"] >= 1 and 0.1 < expected["R@1"] < 0.9  # the set is neither trivial nor hopeless
    for where, wanted in (
        ((None, None), expected),
        (gallery, literal_retrieval(embeddings, labels, *gallery, distance)),
    ):
        actual = metrics.retrieval(embeddings, labels, KS, *where, distance, measures=EVERY)
        assert actual == pytest.approx(wanted, abs=1e-12)


def test_lists_longer_than_1000_are_cut():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(2400) % 2
    embeddings = torch.randn(2400, 2, generator=generator) + labels[:, None]
    some = torch.arange(0, 2400, 240)
    expected = literal_retrieval(embeddings[some], labels[some], embeddings, labels)
    actual = metrics.retrieval(embeddings[some], labels[some], KS, embeddings, labels, measures=EVERY)
    assert actual == pytest.approx(expected, abs=1e-12)
    perfect = metrics.retrieval(torch.eye(2)[labels], labels, KS, measures=EVERY)
    assert perfect["mAP@1000"] == 1 and perfect["mAP@1000/class_size"] == pytest.approx(1000 / 1200)


def test_a_perfect_ranking_tells_the_two_map_apart():
    labels = torch.arange(12) // 3
    result = metrics.retrieval(torch.eye(4)[labels], labels, (1, 2), measures=EVERY)
    assert {result[name] for name in ("R@1", "R@2", "P@1", "RP", "MAP@R", "mAP@1000")} == {1.0}
    assert result["mAP@1000/class_size"] == pytest.approx(2 / 3)


def test_the_result_does_not_depend_on_blocks_order_scale_or_autocast():
    embeddings, labels = random_set(1, dim=64)
    expected = metrics.retrieval(embeddings, labels)
    assert all(metrics.retrieval(embeddings, labels, block=block) == expected for block in (1, 7, 40, 1000))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    assert metrics.retrieval(embeddings[order], labels[order]) == pytest.approx(expected, abs=1e-12)
    assert metrics.retrieval(embeddings * 1e-3, labels) == pytest.approx(expected, abs=1e-12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert metrics.retrieval(embeddings, labels) == expected


def test_memory_is_a_block_of_rows_never_a_square():
    count = 3000
    embeddings, labels = torch.randn(count, 8, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 300
    with LargestTensor() as largest:
        metrics.retrieval(embeddings, labels, block=20)
    assert 0 < largest.largest <= 20 * count * 8
    with LargestTensor() as largest:
        metrics.retrieval(embeddings, labels)
    assert 0 < largest.largest <= 2**21 * 8 < 3000 * 3000 * 8


@pytest.mark.filterwarnings("error")
def test_arrays_files_and_names_are_as_good_as_tensors(tmp_path):
    embeddings, labels = random_set(0)
    expected = metrics.retrieval(embeddings, labels)
    np.save(tmp_path / "embeddings.npy", embeddings.numpy())
    mapped = np.load(tmp_path / "embeddings.npy", mmap_mode="r")
    names = [f"class {label:03}" for label in labels.tolist()]
    for points in (embeddings.numpy(), mapped, embeddings.numpy().astype(">f4"), embeddings.requires_grad_()):
        for classes in (labels.numpy(), labels.int(), names, np.array(names), np.array(names, dtype=object)):
            assert metrics.retrieval(points, classes) == expected
    assert metrics.retrieval(embeddings.tolist(), labels.tolist()) == pytest.approx(expected)
    assert metrics.nmi(mapped, names) == metrics.nmi(embeddings, labels)
    some, others = labels > 5, labels < 100  # either lacks classes of the other: a name has one number in both
    names = np.array(names)
    both = [(x[some], y[some], (8,), x[others], y[others]) for x, y in ((mapped, names), (embeddings, labels))]
    assert metrics.retrieval(*both[0]) == metrics.retrieval(*both[1])


@pytest.mark.parametrize("size", [40, 1300])
def test_a_measure_does_not_depend_on_what_else_is_asked_for(size):
    embeddings, labels = random_set(2, size)
    expected = metrics.retrieval_per_query(embeddings, labels, (8,), measures=EVERY)
    assert metrics.retrieval(embeddings, labels, size)[f"R@{size}"] == 1  # beyond the list is its end
    for measures in ((), ("P@1",), ("MAP@R", "P@1"), ("mAP@1000", "RP")):
        values = metrics.retrieval_per_query(embeddings, labels, (8,), measures=measures)
        assert list(values) == ["R@8", *(name for name in ranking.MEASURES if name in measures), "relevant"]
        assert all(torch.equal(values[name], expected[name]) for name in values)
    assert "RP" in metrics.retrieval(embeddings, labels, 8, measures="RP")


def test_ids_keep_an_image_out_of_its_own_list():
    embeddings, labels = random_set(1)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    expected = metrics.retrieval_per_query(embeddings, labels, KS)
    names = np.array([f"{i}.jpg" for i in range(40)])
    for ids in (torch.arange(40), names):
        values = metrics.retrieval_per_query(
            embeddings[order], labels[order], KS, embeddings, labels, query_ids=ids[order], gallery_ids=ids
        )
        assert values.keys() == expected.keys()
        assert all(torch.equal(values[name], expected[name][order]) for name in expected)


def test_queries_that_the_gallery_lacks_search_all_of_it():
    """Half of the queries are in the gallery, and lists go to its end: R is the gallery's size for the others."""
    embeddings, labels = random_set(1, size=12)
    labels[:] = 7
    ids = torch.arange(12)
    ids = {"query_ids": ids[4:], "gallery_ids": ids[:8]}
    values = metrics.retrieval_per_query(
        embeddings[4:], labels[4:], (1, 8), embeddings[:8], labels[:8], measures=EVERY, **ids
    )
    assert values["relevant"].tolist() == [7] * 4 + [8] * 4
    assert all((values[name] == 1).all() for name in ("R@8", "RP", "MAP@R", "mAP@1000"))
    assert values["mAP@1000/class_size"].tolist() == [7 / 8] * 4 + [1] * 4


def test_a_gallery_that_holds_all_queries_unnamed_is_warned_about():
    embeddings, labels = random_set(1)
    with pytest.warns(UserWarning, match="query_ids and gallery_ids"):
        metrics.retrieval(embeddings[:9], labels[:9], gallery=embeddings, gallery_labels=labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ids = {"query_ids": torch.arange(9), "gallery_ids": torch.arange(40)}
        metrics.retrieval(embeddings[:9], labels[:9], gallery=embeddings, gallery_labels=labels, **ids)
        metrics.retrieval(embeddings[:9], labels[:9], gallery=embeddings[1:], gallery_labels=labels[1:])
        metrics.retrieval(embeddings, labels)


def test_long_work_shows_a_bar_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    embeddings, labels = random_set(0)
    for stream, after, shown in ((Terminal(), 0, True), (Terminal(), 10, False), (io.StringIO(), 0, False)):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(ranking, "BAR_AFTER", after)
        metrics.retrieval(embeddings, labels, block=10)
        assert ("ranking" in stream.getvalue()) == shown


def batches(embeddings, labels, size=7):
    return zip(embeddings.split(size), labels.split(size))


def test_batches_give_what_all_images_at_once_do():
    embeddings, labels = random_set(0)
    metric = metrics.RetrievalMetric(ks=(1, 8), measures=("MAP@R",), distance="euclidean")
    expected = metrics.retrieval(embeddings, labels, (1, 8), measures=("MAP@R",), distance="euclidean")
    reused = torch.empty(7, 3)
    for _ in range(2):
        for points, classes in batches(embeddings, labels):
            metric.update(reused[: len(points)].copy_(points), classes.tolist())
        assert metric.compute() == metric.compute() == expected
        metric.reset()
    with pytest.raises(ValueError, match="call update"):
        metric.compute()


@pytest.mark.parametrize("kind", ["integers", "strings"])
def test_an_image_counts_once_by_its_id_and_names_of_any_length_come_back(kind):
    embeddings, labels = random_set(0)
    ids = torch.arange(40) if kind == "integers" else np.array([f"{row}.jpg" for row in range(40)])
    names = labels if kind == "integers" else np.array([f"{'ö' * (label % 5)}{label}" for label in labels.tolist()])
    metric = metrics.RetrievalMetric()
    order = torch.cat([torch.randperm(40, generator=torch.Generator().manual_seed(0)), torch.arange(5)])
    for rows in order.split(7):
        metric.update(embeddings[rows], names[rows], ids[rows])
    metric.update(embeddings[:0], [])
    assert metric.compute() == pytest.approx(metrics.retrieval(embeddings, names), abs=1e-12)
    metric.update(embeddings[:1], names[:1])
    with pytest.raises(ValueError, match="ids came with some batches only"):
        metric.compute()


@pytest.mark.parametrize(
    ("embeddings", "labels", "ids", "message"),
    [
        (torch.ones(2, 2), [0], [0, 1], "must be one for each row of embeddings"),
        (torch.ones(2, 2), [0, 1], [0], "must be one for each row of embeddings"),
        (np.ones((2, 4)), [0, 1], None, "embeddings must have 2 columns as the first had, got 4"),
        (torch.ones(2, 2), [0.5, 1.0], None, "labels must be integers or strings, got"),
        (torch.eye(2), ["0", "1"], None, "labels must be integers in all batches, or strings in all"),
    ],
)
def test_bad_batches_are_named(embeddings, labels, ids, message):
    metric = metrics.RetrievalMetric()
    metric.update(np.eye(2), [0, 1])
    with pytest.raises(ValueError, match=message):
        metric.update(embeddings, labels, ids)
        metric.compute()


def test_it_is_a_metric_of_torchmetrics():
    embeddings, labels = random_set(0)
    metric = metrics.RetrievalMetric((1,), sync_on_compute=True)
    collection = torchmetrics.MetricCollection([metric.clone()])
    for points, classes in batches(embeddings, labels, size=10):
        assert metric(points, classes) == metrics.retrieval(points, classes, (1,))
        collection.update(points, classes)
    assert metric.compute() == collection.compute() == metrics.retrieval(embeddings, labels, (1,))
    assert pickle.loads(pickle.dumps(metric)).compute() == metric.compute()


@pytest.mark.parametrize("last", [1, 2])
def test_a_batch_without_a_positive_is_nan_and_no_image_is_lost(last):
    embeddings, labels = random_set(0)
    metric = metrics.RetrievalMetric()
    metric(embeddings, labels)
    of_batch = metric(embeddings[:last] + 5, range(1000, 1000 + last))
    assert of_batch.pop("excluded") == last and all(math.isnan(value) for value in of_batch.values())
    after = metrics.retrieval(torch.cat([embeddings, embeddings[:last] + 5]), [*labels, *range(1000, 1000 + last)])
    assert metric.compute() == after


@pytest.mark.parametrize(
    "batch", [(torch.full((2, 3), torch.nan), [0, 0]), (torch.ones(2, 4), [0, 0]), (torch.ones(2, 3), [0.5, 1])]
)
def test_a_call_that_raises_loses_no_image(batch):
    embeddings, labels = random_set(0)
    metric = metrics.RetrievalMetric()
    metric(embeddings, labels)
    with pytest.raises(ValueError):
        metric(*batch)
    assert metric.compute() == metrics.retrieval(embeddings, labels) and metric.update_count == 1


def test_a_device_without_float64_is_left_for_the_cpu():
    """Apple's MPS: tensors are moved to the CPU before they are widened."""

    class OfMps(torch.Tensor):
        @property
        def device(self):
            return torch.device("mps")

        def double(self):
            raise TypeError("Cannot convert a MPS Tensor to float64")

        def cpu(self):
            return self.as_subclass(torch.Tensor)

    embeddings, labels = random_set(0)
    assert metrics.retrieval(embeddings.as_subclass(OfMps), labels) == metrics.retrieval(embeddings, labels)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: metrics.retrieval(x[0], y), r"embeddings must be a non-empty .*shape \(3,\)"),
        (lambda x, y: metrics.retrieval(x.int(), y), r"embeddings must be .* got torch.int32"),
        (lambda x, y: metrics.retrieval(x.index_fill(0, torch.tensor(4), torch.nan), y), "embeddings .* NaN.* row 4"),
        (lambda x, y: metrics.retrieval(x, y[1:]), r"labels must be 40 integers.*\(39,\)"),
        (lambda x, y: metrics.retrieval(x, y.float()), r"labels must be 40 integers.*float32"),
        (lambda x, y: metrics.retrieval(x, y, (0, 1)), r"ks must be ranks from 1 up, .*got \(0, 1\)"),
        (lambda x, y: metrics.retrieval(x, y, (), measures=()), r"some where there are no measures, got \(\)"),
        (lambda x, y: metrics.retrieval(x, y, gallery=x), "gallery and gallery_labels must be given together"),
        (lambda x, y: metrics.retrieval(x, y, gallery=x[:, :2], gallery_labels=y), "gallery must have 3 columns"),
        (lambda x, y: metrics.retrieval(x, y, distance="dot"), '"cosine" or "euclidean", got \'dot\''),
        (lambda x, y: metrics.retrieval(x, torch.arange(40)), "every class has one item"),
        (lambda x, y: metrics.retrieval(x[:1], y[:1]), "at least two items"),
        (lambda x, y: metrics.retrieval(x, [None] * 40), r"labels must be 40 integers or strings.*object"),
        (lambda x, y: metrics.retrieval(x, y, gallery=x, gallery_labels=["a"] * 40), "integers both, or strings both"),
        (lambda x, y: metrics.retrieval(x, y, measures=("R@1",)), r"measures must be some of .*ks asks for R@K"),
        (lambda x, y: metrics.retrieval(x, y, query_ids=y), "go with a gallery"),
        (lambda x, y: metrics.retrieval(x, y, gallery=x, gallery_labels=y, query_ids=y), "must be given together"),
        (
            lambda x, y: metrics.retrieval(x, y, gallery=x, gallery_labels=y, query_ids=y, gallery_ids=[*range(39), 4]),
            "gallery_ids must differ, rows 4 and 39 name one image",
        ),
        (lambda x, y: metrics.nearest(x, 40), r"k must lie in \[1, 39\].*got 40"),
    ],
)
def test_bad_retrieval_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(*random_set(0))


@pytest.mark.parametrize("length, shown", [(0.0, "0"), (1e-13, "1e-13"), (1e200, "inf")])
def test_a_vector_without_direction_is_named_instead_of_ranked_by_index(length, shown):
    embeddings, labels = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    embeddings[2] *= length / embeddings[2].norm()
    message = f"have no direction in row 2, whose norm is {shown}"
    for measure in (metrics.retrieval, metrics.nmi, metrics.class_diversity):
        with pytest.raises(ValueError, match=f"embeddings {message}"):
            measure(embeddings, labels)
    for measure in (lambda x: metrics.nearest(x, 1), metrics.feature_diversity):
        with pytest.raises(ValueError, match=f"embeddings {message}"):
            measure(embeddings)
    with pytest.raises(ValueError, match=f"gallery {message}"):
        metrics.retrieval(embeddings[:1], labels[:1], gallery=embeddings, gallery_labels=labels)
    with pytest.raises(ValueError, match=f"proxies {message}"):
        metrics.proxy_wasserstein(embeddings[:, None], embeddings[:2], labels[:2])
    if length < 1:  # a short vector has a Euclidean distance like any other
        assert metrics.nearest(embeddings, 1, distance="euclidean").shape == (4, 1)
    else:
        with pytest.raises(ValueError, match="too long for float64 to square"):
            metrics.nearest(embeddings, 1, distance="euclidean")


def test_nmi_of_clear_clusters_and_of_one():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    clear = torch.eye(3)[labels] * 5 + 0.1 * torch.randn(60, 3, generator=generator)
    assert metrics.nmi(clear, labels, num_clusters=1) == 0
    clear *= torch.rand(60, 1, generator=generator) * 100 + 1  # cosine ignores it, Euclidean distance does not
    assert metrics.nmi(clear, labels) == pytest.approx(1)
    assert metrics.nmi(clear, labels, distance="euclidean") < 0.9


def test_nmi_equals_its_definition():
    embeddings, labels = random_set(0, size=50)
    unit = torch.nn.functional.normalize(embeddings.double(), dim=1).float().numpy()
    clusters = KMeans(4, n_init=1, random_state=7).fit_predict(unit)
    groups = labels.numpy(), clusters, labels.numpy() * 10 + clusters
    of_labels, of_clusters, joint = (entropy(np.unique(each, return_counts=True)[1]) for each in groups)
    expected = 2 * (of_labels + of_clusters - joint) / (of_labels + of_clusters)
    assert metrics.nmi(embeddings, labels, num_clusters=4, seed=7) == pytest.approx(expected, abs=1e-12)


def test_label_purity_equals_the_loop_for_masks_and_clusters():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 5, 30) * 2
    mask = (generator.random((12, 30)) < 0.3) | np.eye(12, 30, dtype=bool)
    shares = [max(np.mean(labels[row] == c) for c in labels) for row in mask]
    assert metrics.label_purity(torch.tensor(mask), torch.tensor(labels)) == pytest.approx(np.mean(shares), abs=1e-12)
    clusters = generator.integers(0, 4, 30)
    shares = [max(np.mean(labels[clusters == own] == c) for c in labels) for own in clusters]
    assert metrics.label_purity(torch.tensor(clusters), torch.tensor(labels)) == pytest.approx(np.mean(shares))
    own_cluster = torch.tensor(clusters[:, None] == clusters)  # the mask form of the same clusters
    assert metrics.label_purity(own_cluster, torch.tensor(labels)) == pytest.approx(np.mean(shares))
    names = [f"class {label}" for label in labels]
    assert metrics.label_purity(torch.tensor(mask), names) == metrics.label_purity(torch.tensor(mask), labels)


@pytest.mark.parametrize("seed", range(3))
def test_similarity_correlation_equals_numpy(seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, 25)
    same = labels[:, None] == labels
    similarity = generator.normal(size=(25, 25)) + same
    np.fill_diagonal(similarity, 1e30)  # must not count
    pairs = ~np.eye(25, dtype=bool)
    expected = np.corrcoef(similarity[pairs], same[pairs])[0, 1]
    actual = metrics.similarity_correlation(torch.tensor(similarity), torch.tensor(labels))
    assert actual == pytest.approx(expected, abs=1e-12)
    assert metrics.similarity_correlation(torch.tensor(-2.0 * same), torch.tensor(labels)) == pytest.approx(-1)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.mark.parametrize("form", ["assignment", "w2", "nearest"])
@pytest.mark.parametrize("seed", range(3))
def test_proxy_wasserstein_equals_the_search_over_all_matchings(seed, form):
    generator = np.random.default_rng(seed)
    proxies, embeddings = generator.normal(size=(4, 3, 5)), generator.normal(size=(16, 5))
    labels = np.array([0] * 6 + [1] * 7 + [3] * 2 + [0])  # class 2 has no sample, class 3 fewer than proxies
    expected = np.full(4, np.nan)
    for c in (0, 1, 3):
        cost = cdist(unit(proxies[c]), unit(embeddings[labels == c]))
        cost = cost**2 if form == "w2" else cost
        if form == "nearest":
            expected[c] = np.mean([min(row) for row in cost])
            continue
        cost = cost if cost.shape[0] <= cost.shape[1] else cost.T
        chosen = itertools.permutations(range(cost.shape[1]), len(cost))
        expected[c] = min(np.mean([cost[row, column] for row, column in enumerate(order)]) for order in chosen)
        expected[c] = expected[c] ** 0.5 if form == "w2" else expected[c]
    mean, per_class = metrics.proxy_wasserstein(*map(torch.tensor, (proxies, embeddings, labels)), form)
    np.testing.assert_allclose(per_class.numpy(), expected, rtol=0, atol=1e-12)
    assert mean == pytest.approx(np.nanmean(expected), abs=1e-12)


def test_covering_radius_equals_the_loop():
    generator = np.random.default_rng(0)
    points, centers = generator.normal(size=(4200, 3)), generator.normal(size=(9, 3))
    expected = cdist(points, centers).min(1).max()
    assert metrics.covering_radius(torch.tensor(points), torch.tensor(centers)) == pytest.approx(expected, abs=1e-12)
    assert metrics.covering_radius(torch.tensor(points), torch.tensor(points)) == 0


def test_average_covering_radius_equals_the_loop():
    generator = np.random.default_rng(1)
    points, labels = generator.normal(size=(20, 3)), np.array([4] * 8 + [9] * 11 + [2])

    averages = []
    for label in (4, 9, 2):
        apart = cdist(points[labels == label], points[labels == label])
        centers, radii = [apart.max(1).argmin()], []
        for _ in apart:
            nearest = apart[:, centers].min(1)
            radii.append(nearest.max())
            centers.append(nearest.argmax())
        averages.append(np.mean(radii))
    actual = metrics.average_covering_radius(torch.tensor(points), torch.tensor(labels))
    assert actual == pytest.approx(np.mean(averages), abs=1e-12)


def test_feature_diversity_is_exp_of_minus_the_spectral_decay():
    embeddings = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 9)
    singular = np.linalg.svd(unit(embeddings.double().numpy()), compute_uv=False)
    rho = entropy(np.full(8, 1 / 8), singular / singular.sum())
    assert metrics.feature_diversity(embeddings) == pytest.approx(math.exp(-rho), abs=1e-12)
    assert metrics.feature_diversity(torch.eye(8).repeat(3, 1)) == pytest.approx(1)
    assert metrics.feature_diversity(torch.ones(10, 4)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("form", ["within", "across"])
def test_class_diversity_equals_the_loop(form):
    embeddings, labels = random_set(2)
    points, labels = unit(embeddings.double().numpy()), labels.numpy()
    variances, means = [], []
    for label in set(labels.tolist()) - {100}:
        distances = pdist(points[labels == label])
        variances.append(np.var(distances))
        means.append(np.mean(distances))
    expected = np.mean(variances) if form == "within" else np.var(means)
    assert metrics.class_diversity(embeddings, torch.tensor(labels), form) == pytest.approx(expected, abs=1e-12)


X, Y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.nmi(X, Y, distance="dot"), '"cosine" or "euclidean", got \'dot\''),
        (lambda: metrics.nmi(X, Y, 0), r"num_clusters must lie in \[1, 4\].* got 0"),
        (lambda: metrics.nmi(X[:0], Y[:0]), "embeddings must be a non-empty"),
        (lambda: metrics.label_purity(Y[:0], Y[:0]), "labels are empty"),
        (lambda: metrics.label_purity(torch.ones(2, 3, dtype=torch.bool), Y), r"groups must be .*\(G, 4\).*\(2, 3\)"),
        (lambda: metrics.label_purity(torch.ones(4, 4), Y), r"groups must be .* got torch.float32"),
        (lambda: metrics.label_purity(torch.eye(5, 4).bool(), Y), "row 4 is empty"),
        (lambda: metrics.similarity_correlation(X, Y), "similarity must be square"),
        (lambda: metrics.RetrievalMetric(ks=(1,))(X, Y, [0] * len(X)), "ids must tell images apart"),
        (lambda: metrics.similarity_correlation(torch.full((7, 7), 0.3), torch.arange(7) % 2), "undefined"),
        (lambda: metrics.proxy_wasserstein(X, X, Y), r"proxies must be \(C, M, 3\).*\(4, 3\)"),
        (lambda: metrics.proxy_wasserstein(X[:1, None], X, Y), r"labels must lie in \[0, 1\), found 0 to 1"),
        (lambda: metrics.proxy_wasserstein(X[:, None], X, Y, "w3"), "got 'w3'"),
        (lambda: metrics.proxy_wasserstein(X[:, None] * torch.nan, X, Y), "proxies contain NaN"),
        (lambda: metrics.class_diversity(X, torch.arange(4)), "a class of at least two samples"),
        (lambda: metrics.class_diversity(X, Y, "between"), "got 'between'"),
        (lambda: metrics.covering_radius(X, X[:0]), "centers must be a non-empty"),
        (lambda: metrics.covering_radius(X, X[:, :2]), "centers must have 3 columns like points, got 2"),
    ],
)
def test_bad_geometry_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
