"""The state of losses that draw or remember: random streams and memories, which are no weights.

It goes on with each call in training; in eval() and under no_grad a call leaves it as it is. Activation checkpointing
computes a call again in backward: that begins from the state that the call began from, and leaves it as it is, too.
In the state_dict it is bytes with a checksum. So an average of weights in place, such as timm's, leaves it alone, and
an average of two state dicts, which is no state, is not taken when it is loaded.
"""

import functools
import itertools
import operator
import weakref
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dmlrepro.losses.checks import values_are_known


def goes_on(module: nn.Module) -> bool:
    """Whether a call may change the module: not while it validates."""
    return module.training and torch.is_grad_enabled()


class _Stateful(nn.Module):
    """A module with such a state: the attributes `kept`, its own or a part's, which are tensors or numbers.

    Shapes stay, and no call changes the tensors themselves: it puts others in their place.
    """

    kept: tuple[str, ...] = ()

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.register_load_state_dict_pre_hook(_keep_the_rest)

    def held(self) -> tuple[Tensor, ...]:
        values = (operator.attrgetter(name)(self) for name in self.kept)
        return tuple(value if isinstance(value, Tensor) else torch.as_tensor(value) for value in values)

    def hold(self, *tensors: Tensor) -> None:
        for name, tensor in zip(self.kept, tensors):
            path, _, attribute = name.rpartition(".")
            part: Any = self.get_submodule(path)
            kind = type(getattr(part, attribute))
            setattr(part, attribute, tensor if kind is Tensor else kind(tensor))

    def get_extra_state(self) -> Tensor:
        """Bytes beside the parameters; floating point numbers are wide, so that the length is that of any dtype."""
        held = [tensor.double() if tensor.is_floating_point() else tensor for tensor in self.held()]
        device = next(itertools.chain(self.parameters(), held)).device
        content = torch.cat([tensor.to(device).reshape(-1).view(torch.uint8) for tensor in held])
        return torch.cat([_checksum(content), content])

    def set_extra_state(self, state: Tensor) -> None:
        held = self.held()
        sizes = [tensor.numel() * (8 if tensor.is_floating_point() else tensor.element_size()) for tensor in held]
        if state.numel() != 8 + sum(sizes):
            raise ValueError(
                f"the state of {type(self).__name__} must have {8 + sum(sizes)} bytes, got {state.numel()}; make the "
                "loss with the arguments of the one that was saved"
            )
        if state.is_meta or state.dtype != torch.uint8 or not torch.equal(state[:8], _checksum(state[8:])):
            return  # an average, or none
        parts = []
        for tensor, part in zip(held, state[8:].split(sizes)):
            saved = part.clone().view(torch.float64 if tensor.is_floating_point() else tensor.dtype)
            parts.append(saved.view(tensor.shape).to(tensor))
        self.hold(*parts)


def _checksum(content: Tensor) -> Tensor:
    known = 0 if content.is_meta else zlib.crc32(content.cpu().numpy().tobytes())
    return torch.tensor([known], device="cpu").view(torch.uint8).to(content.device)


def _keep_the_rest(module: _Stateful, state: dict, prefix: str, *_: object) -> None:
    """A state of parameters alone loads strictly and leaves the rest as it is."""
    state.setdefault(f"{prefix}_extra_state", module.get_extra_state())


class _Call:
    """A call in training, what it was given and what state it began from. It lives as long as the graph of its value"""

    def __init__(self, module: _Stateful, given: list[Tensor], start: tuple[Tensor, ...]):
        self.module, self.given, self.start = module, given, start
        self.task = self.node = -1  # the backward that computed it again last, and where that was


_calls: weakref.WeakValueDictionary[int, _Call] = weakref.WeakValueDictionary()  # by number, from the oldest on
_numbers = itertools.count()


def _begun(module: _Stateful, given: list[Tensor], task: int) -> tuple[Tensor, ...]:
    """The state that the call which is computed again in a backward began from.

    Of equal calls it is the newest that is left, in the order of a backward. Where several calls are computed again as
    one that must also be their order.
    """
    calls = [(number, call) for number, call in list(_calls.items()) if call.module is module]
    same = [(number, call) for number, call in calls if all(map(_equal, call.given, given))]
    left = [(number, call) for number, call in same if call.task != task]
    node = torch._C._current_autograd_node()._sequence_nr()
    now = max((number for number, call in calls if (call.task, call.node) == (task, node)), default=-1)
    number, call = (left or same)[-1] if same else (-2, None)
    if call is None or number < now:
        raise RuntimeError(
            f"{type(module).__name__} cannot tell which of its calls activation checkpointing computes again, and "
            "would draw or remember something else; pass use_reentrant=False, checkpoint calls with the same "
            "embeddings one by one, or leave the loss out of what is checkpointed"
        )
    call.task, call.node = task, node
    return call.start


def _equal(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.device) == (other.dtype, other.device) and torch.equal(one, other)


def _may_come_again() -> bool:
    """Whether what autograd saves goes through hooks, those of checkpointing for one; torch before 2.8 does not say."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is None or top(False) is not None


def replayable(call: Callable[..., Any]) -> Callable[..., Any]:
    """Of a method of a `_Stateful` module that changes what it holds: it does so once for each call in training.

    The method is given embeddings, perhaps with labels and more, and returns what gradients begin from: a tensor, or
    terms for a reducer of pytorch-metric-learning.
    """

    @functools.wraps(call)
    def called(self: Any, *args: Any, **named: Any) -> Any:
        now, changes = self.held(), goes_on(self)
        if not values_are_known():
            value = call(self, *args, **named)
            if not changes:
                self.hold(*now)
            return value
        given = [each for each in (*args, *named.values()) if isinstance(each, Tensor)]
        task = torch._C._current_graph_task_id()  # -1 outside of a backward
        if again := changes and task != -1:
            self.hold(*_begun(self, given, task))
        try:
            value = call(self, *args, **named)
        finally:  # checkpointing ends a computation by an exception as soon as it has what it needs
            if again or not changes:
                self.hold(*now)
        if changes and not again and _may_come_again():
            number, kept = next(_numbers), _Call(self, given, now)
            _calls[number] = kept
            parts: list[Any] = [value] if isinstance(value, Tensor) else [term["losses"] for term in value.values()]
            for part in parts:
                if part.grad_fn is not None:
                    part.grad_fn.metadata[number] = kept
        return value

    return called
