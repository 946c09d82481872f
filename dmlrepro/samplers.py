"""Batch composition: which samples meet in a batch.

`m_per_class` is the sampler of pair losses (PK sampling), `shuffled` that of proxy losses, `neighbour_groups` that of
unsupervised methods. All give `Batches` whose randomness comes from one explicit CPU generator: its state
between two passes says which batches follow. For torch's DataLoader:

    batches = m_per_class(labels, 32, 4, num_batches=100, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(dataset, batch_sampler=batches.lists(), num_workers=2, persistent_workers=True)
"""

import numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor


@dataclass(frozen=True)
class Batches:
    """`num_batches` index tensors (B,) at each pass; another pass draws other batches, from where the generator is.

    draw(queue, generator) -> (batch, rest) takes a batch from a queue: what is left of the current shuffle.
    """

    draw: Callable[[Tensor, Generator], tuple[Tensor, Tensor]]
    num_batches: int
    generator: Generator
    as_lists: bool = False

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator:
        queue = torch.empty(0, dtype=torch.int64)
        for _ in range(self.num_batches):
            batch, queue = self.draw(queue, self.generator)
            yield batch.tolist() if self.as_lists else batch

    def lists(self) -> "Batches":
        """The same batches as lists of int, which a DataLoader passes on to any data set."""
        return replace(self, as_lists=True)


def m_per_class(
    labels: object, batch_size: int, samples_per_class: int, num_batches: int, generator: Generator
) -> Batches:
    """Batches of batch_size / samples_per_class distinct classes, samples_per_class samples of each, grouped by class.

    Classes come from one shuffle after another, so after any number of batches of a pass the visits of two classes
    differ by at most one. Samples are drawn anew at each visit, without replacement; a class with fewer than
    samples_per_class samples is repeated as evenly as it can be.

    Args:
        labels: (N,) integers, list, array or tensor; the indices returned point into it.
        batch_size: a multiple of samples_per_class.
        num_batches: length of a pass.
        generator: CPU generator, the only source of randomness.

    Raises:
        ValueError: labels that are no integers, batch_size not a multiple, or more classes in a batch than there are.
    """
    _check(generator, batch_size=batch_size, samples_per_class=samples_per_class, num_batches=num_batches)
    labels = _integers(labels)
    if batch_size % samples_per_class:
        raise ValueError(f"batch_size {batch_size} must be a multiple of samples_per_class {samples_per_class}")
    by_class = labels.argsort(stable=True)
    sizes = labels.unique(return_counts=True)[1]
    starts, widest = sizes.cumsum(0) - sizes, int(sizes.max())
    turns = torch.arange(samples_per_class) % sizes[:, None]  # small classes begin again
    classes_per_batch = batch_size // samples_per_class
    if classes_per_batch > len(sizes):
        raise ValueError(
            f"batch_size {batch_size} with samples_per_class {samples_per_class} needs {classes_per_batch} classes, "
            f"labels have {len(sizes)}; lower batch_size or raise samples_per_class"
        )

    def draw(queue: Tensor, generator: Generator):
        if len(queue) < classes_per_batch:  # finish the old shuffle, then take classes not in this batch yet
            fresh = torch.randperm(len(sizes), generator=generator)
            repeated = torch.isin(fresh, queue)
            queue = torch.cat([queue, fresh[~repeated], fresh[repeated]])
        chosen, queue = queue[:classes_per_batch], queue[classes_per_batch:]
        keys = torch.rand(classes_per_batch, widest, generator=generator)
        keys.masked_fill_(torch.arange(widest) >= sizes[chosen, None], 1)
        order = keys.topk(min(samples_per_class, widest), largest=False).indices  # a random sample of each class
        return by_class[starts[chosen, None] + order.gather(1, turns[chosen])].flatten(), queue

    return Batches(draw, num_batches, generator)


def shuffled(num_items: int, batch_size: int, num_batches: int, generator: Generator) -> Batches:
    """Batches cut from one random permutation of range(num_items) after another; an incomplete last batch is dropped.

    >>> batches = shuffled(num_items=5, batch_size=2, num_batches=2, generator=torch.Generator().manual_seed(0))
    >>> len(set(torch.cat([*batches]).tolist()))
    4

    Raises:
        ValueError: batch_size is larger than num_items.
    """
    _check(generator, num_items=num_items, batch_size=batch_size, num_batches=num_batches)
    if batch_size > num_items:
        raise ValueError(f"batch_size {batch_size} exceeds the {num_items} items; lower batch_size")

    def draw(queue: Tensor, generator: Generator):
        if len(queue) < batch_size:
            queue = torch.randperm(num_items, generator=generator)
        return queue[:batch_size], queue[batch_size:]

    return Batches(draw, num_batches, generator)


def neighbour_groups(neighbours: Tensor, batch_size: int, num_batches: int, generator: Generator) -> Batches:
    """Batches of batch_size / k images and the nearest neighbours of each, group after group (STML; PLM).

    The images that a group grows from come from one shuffle after another; groups may overlap.

    Args:
        neighbours: (N, k) int64, in each row an item and its k - 1 nearest neighbours.
        batch_size: a multiple of k.

    Raises:
        ValueError: batch_size is not a multiple of k, or needs more groups than there are items.
    """
    _check(generator, batch_size=batch_size, num_batches=num_batches)
    neighbours = torch.as_tensor(neighbours)
    whole = not neighbours.is_floating_point() and neighbours.dtype != torch.bool
    if neighbours.ndim != 2 or neighbours.numel() == 0 or not whole:
        got = f"{neighbours.dtype} of shape {tuple(neighbours.shape)}"
        raise ValueError(f"neighbours must be integers of shape (N, k), N and k from 1 on, got {got}")
    (items, size), neighbours = neighbours.shape, neighbours.to("cpu", torch.int64)
    if not 0 <= neighbours.min() <= neighbours.max() < items:
        found = neighbours.min() if neighbours.min() < 0 else neighbours.max()
        raise ValueError(f"neighbours must be rows of the {items} items, 0 to {items - 1}, found {int(found)}")
    if batch_size % size:
        raise ValueError(f"batch_size {batch_size} must be a multiple of the {size} neighbours of a group")
    if batch_size // size > items:
        raise ValueError(f"batch_size {batch_size} has more than the {items} groups of {size}; lower batch_size")
    centres = shuffled(items, batch_size // size, num_batches, generator)

    def draw(queue: Tensor, generator: Generator):
        chosen, queue = centres.draw(queue, generator)
        return neighbours[chosen].flatten(), queue

    return Batches(draw, num_batches, generator)


def _integers(labels: object) -> Tensor:
    try:
        vector = torch.as_tensor(labels)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"labels must be a vector of integers ({error}); number them by np.unique(labels, return_inverse=True)[1]"
        ) from error
    if vector.ndim == 1 and not len(vector):
        raise ValueError("labels are empty; give one for each item")
    if vector.ndim != 1 or vector.is_floating_point() or vector.is_complex():
        raise ValueError(f"labels must be a vector of integers, got {vector.dtype} of shape {tuple(vector.shape)}")
    return vector.to("cpu", torch.int64)


def _check(generator: Generator, **arguments: int) -> None:
    for name, value in arguments.items():
        if not isinstance(value, numbers.Integral):
            raise ValueError(f"{name} must be a whole number, got {value!r}")
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not isinstance(generator, Generator) or generator.device.type != "cpu":
        got = generator.device if isinstance(generator, Generator) else type(generator).__name__
        raise ValueError(f"generator must be a torch.Generator on the CPU, got {got}; pass torch.Generator()")
