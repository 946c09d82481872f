"""The lists of every route are those of float64 distances, ties by index, whatever the offset and the scale."""

import math

import pytest
import torch
import torch.nn.functional as F

from dmlrepro import retrieval

ROUTES = ("faiss", "torch", "float64")


def take(route, patch):
    patch.setattr(retrieval, "SMALLEST_SEARCH", math.inf if route == "float64" else 0)
    patch.setattr(retrieval, "LONGEST_LIST", 1)
    patch.setattr(retrieval, "FAISS_CANDIDATES", 10**6 if route == "faiss" else 0)


@pytest.fixture(params=ROUTES)
def route(request, monkeypatch):
    take(request.param, monkeypatch)
    searched, search = [], retrieval._searched_by_faiss
    monkeypatch.setattr(retrieval, "_searched_by_faiss", lambda *how: searched.append(1) or search(*how))
    yield request.param
    assert bool(searched) == (request.param == "faiss")


def by(route, call):
    with pytest.MonkeyPatch.context() as patch:
        take(route, patch)
        return call()


def ranked_anew(monkeypatch):
    """The rows that a search in float32 leaves to float64, call by call."""
    calls, near = [], retrieval._Search.all_near
    monkeypatch.setattr(
        retrieval._Search, "all_near", lambda self, rows, wanted: calls.append(len(rows)) or near(self, rows, wanted)
    )
    return calls


def squared_distances(queries, gallery, distance):
    """(N, G) in float64, every difference taken before it is squared."""
    queries, gallery = queries.double(), gallery.double()
    if distance == "cosine":
        queries, gallery = (x / x.norm(dim=1, keepdim=True) for x in (queries, gallery))
    return torch.stack([(gallery - query).square().sum(1) for query in queries])


def assert_right(lists, squares, own):
    """Each list holds the least of its row in ascending order, and equal ones ascend by index."""
    if own:
        squares = squares.clone().fill_diagonal_(torch.inf)
    expected = squares.sort(dim=1, stable=True)
    k = lists.shape[1]
    found = squares.gather(1, lists)
    assert torch.allclose(found, expected.values[:, :k], rtol=2e-9, atol=0)
    tied = found[:, 1:] == found[:, :-1]
    assert (lists[:, 1:] > lists[:, :-1])[tied].all()
    clear = (expected.values[:, 1:] > expected.values[:, :-1] * (1 + 1e-8))[:, :k]
    before = F.pad(clear, (1, 0), value=True)[:, :k]
    same = lists == expected.indices[:, :k]
    assert same[clear & before].all()


def classes(seed, size=240, dim=16):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(size // 8, (size,), generator=generator)
    points = torch.randn(size, dim, generator=generator, dtype=torch.float64) * 0.3
    return points + 3 * torch.randn(size, dim, generator=generator, dtype=torch.float64)[labels], labels


def with_twins(points):
    points = points.clone()
    points[1::6], points[2::6] = points[::6], points[::6]
    return points


def with_outliers(far):
    def place(points):
        points = points.clone()
        points[7], points[100] = far, -far
        return points

    return place


PLACES = {
    "as they are": lambda points: points,
    "twins": with_twins,
    "few values": lambda points: points[:, :3].sign() + 0.25,
    "all alike": lambda points: points[:1].expand(len(points), -1),
    "one class in another": lambda points: torch.cat([points[:120], points[120:] * 1e-6]),
    **{f"moved by {offset:.0e}": (lambda points, offset=offset: points + offset) for offset in (1e2, 1e5, 3e5, 1e8)},
    **{f"scaled by {scale:.0e}": (lambda points, scale=scale: points * scale) for scale in (1e-8, 1e8)},
    "scaled by 1e-8 and moved by 1": lambda points: points * 1e-8 + 1,
    **{f"two at {far:.0e}": with_outliers(far) for far in (1e3, 1e6, 1e8)},
    "scaled by 1e-8, two at 1e8": lambda points: with_outliers(1e8)(points * 1e-8),
    "twins moved by 1e6": lambda points: with_twins(points) + 1e6,
    "twins, two at 1e8": lambda points: with_outliers(1e8)(with_twins(points)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("place", PLACES)
def test_lists_are_those_of_float64_differences(route, place, distance, dtype):
    points = PLACES[place](classes(0)[0]).to(dtype)
    squares = squared_distances(points, points, distance)
    for k in (1, 10, 100, 239):
        assert_right(retrieval.nearest(points, k, distance=distance), squares, own=True)
    some = points[::9]
    lists = retrieval.nearest(some, 20, gallery=points, distance=distance, block=7)
    assert_right(lists, squares[::9], own=False)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("place", PLACES)
def test_measures_are_those_of_the_lists(route, place, distance):
    """With labels only what decides a hit is compared exactly: the lists of `nearest` give the same bytes."""
    points, labels = classes(1)
    points = PLACES[place](points)
    lists = retrieval.nearest(points, len(points) - 1, distance=distance)
    relevant = torch.bincount(labels)[labels] - 1
    hits = labels[lists] == labels[:, None]
    values = retrieval.retrieval_per_query(points, labels, (1, 5, 50), distance=distance)
    expected = retrieval._of_lists(hits, relevant, relevant + 1, (1, 5, 50), {"P@1", "RP", "MAP@R"}, hits.shape[1])
    assert all(torch.equal(values[name], expected[name].double()) for name in values)


def near_duplicates(size, generator):
    """Groups of 40 closer to each other than float32 resolves, scattered over the gallery."""
    points = torch.randn(size // 40, 80, generator=generator).double().repeat(40, 1)
    return points + 1e-8 * torch.randn(size, 80, generator=generator, dtype=torch.float64)


KINDS = {  # 80 dimensions are two products
    "random": lambda size, generator: torch.randn(size, 80, generator=generator),
    # every point has many twins, so that every list ends within a tie
    "tied": lambda size, generator: torch.randint(-1, 2, (size, 3), generator=generator).float() + 0.25,
    "near duplicates": near_duplicates,
    # all cosines lie between 0.9999 and 1
    "collapsed": lambda size, generator: 1 + 1e-3 * torch.randn(size, 80, generator=generator),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_route_gives_the_same_bytes(kind):
    generator = torch.Generator().manual_seed(1)
    points = KINDS[kind](1400, generator)
    labels = torch.randint(100, (len(points),), generator=generator)
    some, ids = torch.arange(0, 1400, 9), torch.arange(1400)
    for call in (
        lambda: {"lists": retrieval.nearest(points[some], 20, points)},
        lambda: retrieval.retrieval_per_query(points, labels, measures=retrieval.MEASURES),
        lambda: retrieval.retrieval_per_query(
            points[some], labels[some], (1, 100), points, labels, "euclidean", query_ids=some, gallery_ids=ids
        ),
    ):
        expected = by("float64", call)
        for found in (by("faiss", call), by("torch", call)):
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_products_that_round_further_are_not_searched_with(precision, monkeypatch):
    points, anew = torch.randn(2400, 8), ranked_anew(monkeypatch)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        by("torch", lambda: retrieval.nearest(points, 5))
    finally:
        torch.set_float32_matmul_precision(before)
    assert sum(anew) == len(points)


def test_a_small_gallery_is_ranked_in_float64(monkeypatch):
    anew = ranked_anew(monkeypatch)
    retrieval.retrieval(torch.randn(1000, 4), torch.arange(1000) // 5, measures="MAP@R")
    assert sum(anew) == 1000


def test_without_faiss_torch_searches(monkeypatch):
    points = torch.randn(2000, 8)
    expected = retrieval.nearest(points, 5)
    monkeypatch.setattr(retrieval, "find_spec", lambda name: None)
    monkeypatch.setattr(retrieval, "_searched_by_faiss", None)
    assert torch.equal(retrieval.nearest(points, 5), expected)


def test_faiss_keeps_its_number_of_threads():
    import faiss

    before = faiss.omp_get_max_threads()
    retrieval.nearest(torch.randn(2000, 8), 5)
    assert faiss.omp_get_max_threads() == before


def test_more_targets_than_a_key_can_number_are_refused(monkeypatch):
    monkeypatch.setattr(retrieval, "INDEX_BITS", 3)
    with pytest.raises(ValueError, match=r"gallery must have at most 2\^3 items, got 9; search its parts"):
        retrieval.nearest(torch.randn(9, 2), 1)


def test_blocks_are_sized_for_the_device(monkeypatch):
    class Gpu:
        is_cuda, device = True, "cuda"

    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: type("Of80", (), {"total_memory": 80 * 2**30})
    )
    assert retrieval._at_once(torch.empty(0), retrieval.CPU_BLOCK, 60_502) == 34
    assert 60_502 / retrieval._at_once(Gpu, retrieval.CPU_BLOCK, 60_502) < 30  # blocks; 1,780 on a CPU
