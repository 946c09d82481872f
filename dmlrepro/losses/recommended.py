"""What a loss recommends for its parameters: learning rates and clipping, as groups for any optimiser of torch.

Every loss of this package has `parameter_groups(lr)`, lr being the network's learning rate:

    optimizer = torch.optim.AdamW([{"params": net.parameters()}, *loss.parameter_groups(lr=1e-4)], lr=1e-4)
    ...
    clip_gradients(optimizer)  # between backward and step
    optimizer.step()

The experiments of this repository take the same numbers.
"""

from collections.abc import Mapping

from torch import nn

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


def clip_gradients(optimizer: nn.modules.module.torch.optim.Optimizer) -> None:
    """Clip the gradients of every group of an optimiser that has a "clip_value", entry by entry.

    Call it between backward and step; with a GradScaler after `scaler.unscale_(optimizer)`.
    """
    for group in optimizer.param_groups:
        if group.get("clip_value") is not None:
            nn.utils.clip_grad_value_(group["params"], group["clip_value"])
