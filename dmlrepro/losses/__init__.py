"""One file per paper: `from dmlrepro.losses.potential_field import PotentialFieldLoss`, or by its short name.

    from dmlrepro import losses
    loss = losses.PFML(num_classes=100, embedding_size=128)

`dir(losses)` lists the short names; a file is imported when one of its names is asked for.

Precision  float16 and bfloat16 embeddings, and autocast, are computed in float32 or wider; float64 stays.
Derivative Second ones are right, whatever the upstream gradient is. torch.func.grad works, but not for EL-nivMF, which
           draws, and regularised mean fields of many classes; torch.vmap does not: a batch's values decide what is run.
Compiler   torch.compile(loss, fullgraph=True) works but where pytorch-metric-learning chooses pairs or proxies by their
           values: `proxy_anchor`, `proxy_anchor_with_nivmf`, `nt_xent`, the pair and triplet losses of baselines.py and
           `cross_batch_memory` compile in parts. Compiled code knows shapes only and takes bad values unnoticed.
           torch.export works where fullgraph does, but not for EL-nivMF, whose random stream no graph holds, nor for
           joint losses, which share proxies.
Rates      `loss.parameter_groups(lr)` gives learning rates and clipping, see recommended.py.
"""

import importlib
from typing import Any


def _table() -> dict[str, str]:
    return importlib.import_module(f"{__name__}._names").NAMES  # not an import: runs do not depend on the table


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in _table():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; dir({__name__}) lists the losses")
    module, _, attribute = _table()[name].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)


def __dir__() -> list[str]:
    return sorted(_table())
