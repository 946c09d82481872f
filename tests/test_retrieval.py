"""The search in float32 gives the lists and the measures of float64, byte for byte, and falls back where it cannot."""

import pytest
import torch

from dmlrepro import retrieval


def random_points(size, dim, generator):
    return torch.randn(size, dim, generator=generator)


def tied_points(size, dim, generator):
    """Every point has many twins, so that every list ends within a tie."""
    return torch.randint(-1, 2, (size, min(dim, 3)), generator=generator).float() + 0.25


def near_duplicates(size, dim, generator):
    """Groups of 40 closer to each other than float32 resolves, scattered over the gallery."""
    points = torch.randn(size // 40, dim, generator=generator).double().repeat(40, 1)
    return points + 1e-8 * torch.randn(len(points), dim, generator=generator, dtype=torch.float64)


def collapsed_points(size, dim, generator):
    """All cosines lie between 0.9999 and 1."""
    return 1 + 1e-3 * torch.randn(size, dim, generator=generator)


KINDS = (random_points, tied_points, near_duplicates, collapsed_points)


@pytest.fixture
def searched(monkeypatch):
    """Search galleries of any size; gives the number of queries that were ranked in float64, call by call."""
    monkeypatch.setattr(retrieval, "SMALLEST_SEARCH", 0)
    monkeypatch.setattr(retrieval, "LONGEST_LIST", 1 / 8)
    ranked, calls = retrieval._ranked, []
    monkeypatch.setattr(
        retrieval, "_ranked", lambda points, rows, *how: calls.append(len(rows)) or ranked(points, rows, *how)
    )
    return calls


def in_float64(call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "SMALLEST_SEARCH", 2**62)
        return call()


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("kind", KINDS)
def test_lists_equal_those_of_float64(searched, kind, distance):
    points = kind(2400, 24, torch.Generator().manual_seed(0))
    for call in (
        lambda: retrieval.nearest(points, 20, distance=distance),
        lambda: retrieval.nearest(points[:300], 100, gallery=points, distance=distance),
        lambda: retrieval.nearest(points, 3, distance=distance, block=700),
    ):
        searched.clear()
        lists = call()
        ranked_again = sum(searched)
        assert torch.equal(lists, in_float64(call))
        if kind is random_points:
            assert ranked_again == 0
        if kind is tied_points:
            assert ranked_again > len(lists) / 2  # a tie of more than the spare candidates is for float64 to order


@pytest.mark.parametrize("kind", KINDS)
def test_measures_equal_those_of_float64(searched, kind):
    generator = torch.Generator().manual_seed(1)
    points = kind(9000, 16, generator)
    labels = torch.randint(600, (len(points),), generator=generator)
    some, ids = torch.arange(0, 9000, 45), torch.arange(9000)
    for call in (
        lambda: retrieval.retrieval_per_query(points, labels),
        lambda: retrieval.retrieval_per_query(points[:2400], labels[:2400], (8,), measures=("MAP@R",)),
        lambda: retrieval.retrieval_per_query(
            points[some], labels[some], (1, 1000), points, labels, "euclidean", query_ids=some, gallery_ids=ids
        ),
    ):
        searched.clear()
        measures = call()
        assert sum(searched) < len(measures["relevant"]) or kind is tied_points
        expected = in_float64(call)
        assert measures.keys() == expected.keys()
        assert all(torch.equal(measures[name], expected[name]) for name in expected)


def test_few_candidates_of_a_list_need_float64(monkeypatch):
    """Relevant items and others that float32 may have put on the wrong side of one another."""
    generator = torch.Generator().manual_seed(2)
    points = torch.nn.functional.normalize(torch.randn(9000, 64, generator=generator).double(), dim=1)
    half_squares = torch.ones(9000, 1, dtype=torch.float64), torch.zeros(9000, dtype=torch.float64)
    everything = retrieval.Points(points, points, *half_squares)
    labels = torch.randint(180, (9000,), generator=generator)
    search = retrieval._Search(everything, 1000, torch.arange(9000), (labels, labels))
    asked, exactly = [], retrieval._half_squares
    monkeypatch.setattr(
        retrieval, "_half_squares", lambda points, *pairs: asked.append(len(pairs[0])) or exactly(points, *pairs)
    )
    list(search(torch.arange(50)))
    assert 0 < sum(asked) < 50 * 20


def test_a_wrong_bound_of_the_error_is_noticed(searched, monkeypatch):
    """Without room for its rounding the search in float32 gives other lists: the equality above is none of chance."""
    points = near_duplicates(2400, 24, torch.Generator().manual_seed(0))
    copy, group = torch.arange(2400) // 60, torch.arange(2400) % 60
    labels = group // 2 * 2 + copy % 2  # half of two groups each
    calls = [lambda: retrieval.nearest(points, 39), lambda: retrieval.retrieval(points, labels, 39, measures="MAP@R")]
    monkeypatch.setattr(retrieval._Search, "_undecided", lambda self, rows, keys: torch.zeros_like(keys).bool())
    assert not torch.equal(calls[0](), in_float64(calls[0]))
    assert calls[1]() != in_float64(calls[1])


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_products_that_round_further_are_not_searched_with(searched, precision):
    points = torch.randn(2400, 8)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        retrieval.nearest(points, 5)
    finally:
        torch.set_float32_matmul_precision(before)
    assert sum(searched) == len(points)


def test_a_small_gallery_is_ranked_in_float64(monkeypatch):
    monkeypatch.setattr(retrieval, "_Search", None)
    retrieval.retrieval(torch.randn(1000, 4), torch.arange(1000) // 5, measures="MAP@R")


def test_blocks_are_sized_for_the_device(monkeypatch):
    class Gpu:
        is_cuda, device = True, "cuda"

    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: type("Of80", (), {"total_memory": 80 * 2**30})
    )
    assert retrieval._at_once(torch.empty(0), retrieval.CPU_BLOCK, 60_502) == 34
    assert 60_502 / retrieval._at_once(Gpu, retrieval.CPU_BLOCK, 60_502) < 30  # blocks; 1,780 on a CPU
