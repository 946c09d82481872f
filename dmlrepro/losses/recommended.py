"""What a loss recommends for its parameters: learning rates and clipping, as groups for any optimiser of torch.

Every loss of this package has `parameter_groups(lr)`, lr being the network's learning rate:

    optimizer = torch.optim.AdamW([{"params": net.parameters()}, *loss.parameter_groups(lr=1e-4)], lr=1e-4)
    ...
    clip_gradients(optimizer)  # between backward and step
    optimizer.step()

The experiments of this repository take the same numbers.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

PROXIES = 100  # proxies learn so many times as fast as the network, in PFML, PLM and in the proxy methods before them
BOUNDARY = 50  # Margin's boundary beta learns so many times as fast in the code of Roth et al.


def groups(loss: nn.Module, rates: Mapping[str, float], clip_value: float | None = None) -> list[dict]:
    """Parameter groups of a loss, one for each learning rate, without weight decay; none if it has no parameters.

    rates: by name of the parameter, "*" for all that are not named.
    clip_value: bound of each entry of a gradient, which `clip_gradients` applies.
    """
    together: dict[float, list[nn.Parameter]] = {}
    for name, parameter in loss.named_parameters():
        together.setdefault(rates[name] if name in rates else rates["*"], []).append(parameter)
    clipped = {} if clip_value is None else {"clip_value": clip_value}
    return [{"params": some, "lr": rate, "weight_decay": 0.0} | clipped for rate, some in together.items()]


def rate_of_the_network(loss: nn.Module, lr: float) -> list[dict]:
    """The recommended parameter groups: whatever the loss learns, it learns as fast as the network."""
    return groups(loss, {"*": lr})


def clip_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Clip the gradients of every group of an optimiser that has a "clip_value", entry by entry.

    Call it between backward and step; with a GradScaler after `scaler.unscale_(optimizer)`.
    """
    for group in optimizer.param_groups:
        if group.get("clip_value") is not None:
            nn.utils.clip_grad_value_(group["params"], group["clip_value"])


def order_one(loss: nn.Module, embeddings: Tensor, labels: Tensor | None = None, **more: Any) -> float:
    """The power of ten that makes the value of a loss on this batch lie between 0.3 and 3.2; the loss stays as it is.

    What is added up should be of one order, and a sum over pairs is not: PFML is about 3e6 where a softmax is 5. Take a
    batch of the first steps: most losses fall. Raises ValueError where the value is zero or not finite.
    """
    with torch.no_grad():
        value = abs(float(copy.deepcopy(loss)(embeddings, labels, **more)))
    if not 0 < value < math.inf:
        raise ValueError(f"loss must have a finite value other than 0 on this batch, got {value}; give another batch")
    return 10.0 ** -round(math.log10(value))
