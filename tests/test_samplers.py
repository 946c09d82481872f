"""Batch composition and fairness over classes."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from dmlrepro.samplers import m_per_class, neighbour_groups, shuffled

LABELS = np.repeat([7, 3, 5, 11, 20], [9, 4, 1, 2, 6])[np.random.default_rng(0).permutation(22)]  # unsorted, with gaps

GROUPS = torch.stack([torch.arange(11), torch.arange(11).roll(1), torch.arange(11).roll(-1)], dim=1)  # points on a ring


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_batch_holds_m_samples_of_each_of_its_classes():
    for batch in m_per_class(LABELS, batch_size=6, samples_per_class=2, num_batches=50, generator=seeded()):
        assert batch.dtype == torch.int64 and batch.shape == (6,)
        classes, counts = np.unique(LABELS[batch], return_counts=True)
        assert len(classes) == 3 and (counts == 2).all()


def test_samples_repeat_only_in_classes_that_are_too_small():
    sizes = dict(zip(*np.unique(LABELS, return_counts=True)))
    for batch in m_per_class(LABELS, batch_size=20, samples_per_class=5, num_batches=30, generator=seeded()):
        for group in batch.view(-1, 5):
            (label,) = set(LABELS[group].tolist())
            _, repeats = group.unique(return_counts=True)
            assert len(repeats) == min(5, sizes[label])
            assert repeats.max() - repeats.min() <= 1


@pytest.mark.parametrize("classes_per_batch", [1, 2, 3, 4, 5])
def test_classes_are_visited_evenly_at_any_moment(classes_per_batch):
    visits = dict.fromkeys(LABELS.tolist(), 0)
    for batch in m_per_class(LABELS, classes_per_batch, samples_per_class=1, num_batches=40, generator=seeded(1)):
        for label in LABELS[batch.numpy()]:
            visits[label] += 1
        assert max(visits.values()) - min(visits.values()) <= 1


def test_every_sample_of_a_class_is_drawn_equally_often():
    batches = m_per_class(np.repeat([0, 1], 5), 4, samples_per_class=2, num_batches=4000, generator=seeded())
    counts = torch.cat(list(batches)).bincount(minlength=10)
    expected, sigma = 1600, (4000 * 0.4 * 0.6) ** 0.5
    assert (counts - expected).abs().max() < 5 * sigma


@pytest.mark.parametrize("items", [9, 11])
def test_shuffled_visits_each_item_once_per_epoch_and_drops_the_rest(items):
    batches = list(shuffled(items, batch_size=3, num_batches=9, generator=seeded()))
    assert len(batches) == 9
    for epoch in range(3):
        seen = torch.cat(batches[3 * epoch : 3 * epoch + 3])
        assert len(seen.unique()) == 9 and seen.min() >= 0 and seen.max() < items
    assert not torch.equal(batches[0], batches[3])


def test_groups_of_neighbours_stay_together_and_grow_from_every_item():
    batches = torch.stack(list(neighbour_groups(GROUPS, batch_size=6, num_batches=10, generator=seeded())))
    groups = batches.view(-1, 3)
    assert torch.equal(groups, GROUPS[groups[:, 0]])
    for epoch in groups.view(2, 10, 3):
        assert len(epoch[:, 0].unique()) == 10


SAMPLERS = {
    "m_per_class": lambda generator: m_per_class(LABELS, 6, 2, num_batches=13, generator=generator),
    "shuffled": lambda generator: shuffled(22, 6, num_batches=13, generator=generator),
    "neighbour_groups": lambda generator: neighbour_groups(GROUPS, 6, num_batches=13, generator=generator),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_pass_has_its_length_and_goes_on_with_the_generator_which_alone_decides(name):
    batches = SAMPLERS[name](seeded())
    first, second, other = (torch.stack(list(some)) for some in (batches, batches, SAMPLERS[name](seeded(1))))
    assert len(batches) == len(first) == len(second) == 13
    assert not torch.equal(first, second) and not torch.equal(first, other)
    assert list(SAMPLERS[name](seeded()).lists()) == first.tolist()


@pytest.mark.parametrize("labels", [LABELS.tolist(), torch.from_numpy(LABELS), LABELS.astype(np.uint16)])
def test_labels_may_be_a_list_an_array_or_a_tensor(labels):
    expected = torch.stack(list(m_per_class(LABELS, 6, 2, 5, seeded())))
    assert torch.equal(torch.stack(list(m_per_class(labels, 6, 2, 5, seeded()))), expected)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_a_data_loader_takes_the_batches_in_every_epoch(options):
    rows = {index: (index, label) for index, label in enumerate(LABELS.tolist())}  # found by an int and by nothing else
    loader = DataLoader(rows, batch_sampler=m_per_class(LABELS, 6, 2, 4, seeded()).lists(), **options)
    assert len(loader) == 4
    drawn = m_per_class(LABELS, 6, 2, 4, seeded())
    for _ in range(2):
        for (indices, labels), expected in zip(loader, drawn, strict=True):
            assert torch.equal(indices, expected) and labels.tolist() == LABELS[expected].tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: m_per_class(LABELS, 7, 2, 1, g), "batch_size 7 must be a multiple of samples_per_class 2"),
        (lambda g: m_per_class(LABELS, 12, 2, 1, g), "needs 6 classes, labels have 5"),
        (lambda g: m_per_class(LABELS[:, None], 6, 2, 1, g), r"labels must be a vector.*\(22, 1\)"),
        (lambda g: m_per_class(LABELS[:0], 6, 2, 1, g), "labels are empty"),
        (lambda g: m_per_class(LABELS, 0, 2, 1, g), "batch_size must be at least 1, got 0"),
        (lambda g: m_per_class(LABELS, 6.5, 2, 1, g), "batch_size must be a whole number, got 6.5"),
        (lambda g: m_per_class(list("abc"), 2, 1, 1, g), r"vector of integers .*return_inverse=True"),
        (lambda g: m_per_class(LABELS, 6, 2, 1, 0), r"generator must be a torch.Generator on the CPU, got int"),
        (lambda g: neighbour_groups(GROUPS[0], 6, 1, g), r"neighbours must be .*\(N, k\), .* got .* of shape \(3,\)"),
        (lambda g: neighbour_groups(GROUPS.float(), 6, 1, g), "neighbours must be integers"),
        (lambda g: neighbour_groups(GROUPS + 99, 6, 1, g), r"neighbours must be rows of the \d+ items, .* found \d+"),
        (lambda g: neighbour_groups(GROUPS - 1, 6, 1, g), r"neighbours must be rows of the \d+ items, .* found -1"),
        (lambda g: neighbour_groups(GROUPS, 3 * len(GROUPS) + 3, 1, g), r"has more than the \d+ groups of 3"),
        (lambda g: shuffled(5, 6, 1, g), "batch_size 6 exceeds the 5 items"),
        (lambda g: neighbour_groups(GROUPS, 7, 1, g), "batch_size 7 must be a multiple of the 3 neighbours"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(seeded())
