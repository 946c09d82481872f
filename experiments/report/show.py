"""What a notebook would run, setting by setting: its value, what the paper has, who decided it, and in which line.

Who decided is known from the layers that the runs are built of (`methods.spec_layers`, `methods.option_layers`,
`protocols.decided`). Only what a notebook's own function changes on top is found by comparing with them.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments import papers
from experiments.files import repository_root
from experiments.methods import PARAMETER, Layers, Method, option_layers, spec_layers, spec_of
from experiments.params import Params
from experiments.study import Study
from experiments.training import protocols
from experiments.training.builders import defaults, loss_builder
from experiments.training.spec import LABELS, RunSpec

HEAD = ("setting", "value", "published", "decided by", "in", "source of what is published")
COUNTED = ("seed", "fold", "replica")  # a block says how many there are


def text(study: Study, params: Params) -> str:
    """A table of what all trained methods share, then one per method, variant and protocol."""
    kinds: dict[str, list[RunSpec]] = {}
    for spec in study.specs_untrained(params):
        plain = spec.replace(seed=0, replica=0, fold=None)
        kinds.setdefault(f"{plain.as_dict()}{plain.method}{plain.setting}{plain.protocol}", []).append(spec)
    if not kinds:
        return f"{study.name} trains nothing"
    records = papers.methods()
    blocks = [
        [
            (name, str(value), str(published), who, _line(study, one, name, value, who), source)
            for name, (value, published, who, source) in settings(one, params, records.get(one.method)).items()
        ]
        for one, *_ in kinds.values()
    ]
    trained = [block for block, some in zip(blocks, kinds.values()) if some[0].loss] or blocks
    shared = {row for row in trained[0] if all(row in block for block in trained)}
    runs = sum(map(len, kinds.values()))
    title = f"{study.name}, profile {params.profile}, {params.dataset}: {runs} runs of {len(kinds)} kinds"
    lines = [title, "", "all trained methods", *_table([HEAD, *(row for row in trained[0] if row in shared)])]
    for block, some in zip(blocks, kinds.values()):
        one, seeds, folds = some[0], len({spec.seed for spec in some}), len({spec.fold for spec in some})
        count = f"{seeds} seeds" + f", {folds} folds" * (one.fold is not None)
        lines += ["", f"{' '.join(filter(None, (one.method, one.setting)))} ({one.protocol}; {count})"]
        lines += _table([row for row in block if row not in shared])
    if params.profile == "paper" and study.deviations:
        lines += ["", "what differs from the print", *(f"  - {deviation}" for deviation in study.deviations)]
    return "\n".join(lines)


def settings(spec: RunSpec, params: Params, method: Method | None) -> dict[str, tuple[object, object, str, str]]:
    """Every setting of a run -> its value, the published one, who decided it, and the source of the published one;
    empty where nothing is published. Options of the loss are "loss.option", its rates "loss_lr.name"."""
    layers: Layers = []
    given = {"compile": "torch_compile"}
    if method is not None:
        layers += spec_layers(method, params)
        if spec.protocol in protocols.PROTOCOLS:
            how: dict[str, Any] = {"published": params.profile == "paper", "keep": params.spec_options()}
            decided = protocols.decided(spec_of(method, params, spec.seed), spec.protocol, **how)
            layers.append((f"protocol {spec.protocol}", decided))
        layers += [(who, {"loss_options": layer}) for who, layer in option_layers(method, params, params.backbone)]
        given |= {f"loss.{option}": name for option, name in method.from_parameters.items()}
    # the notebook's paper says it, else the method's own
    printed = (params.published(spec.method, spec.setting) if spec.loss else {}) or (method.published if method else {})
    usual = _flat(vars(RunSpec("", seed=0)) | {"loss_options": defaults(spec.loss)})
    known: dict[str, tuple[object, str]] = {name: (value, "default") for name, value in usual.items()}
    for who, layer in layers:
        for name, value in _flat(layer).items():
            parameter = params.origins.get(given.get(name, name), f"profile {params.profile}")
            known[name] = value, parameter if who == PARAMETER else who
    found: dict[str, tuple[object, object, str, str]] = {}
    for name, value in (usual | _flat(vars(spec))).items():
        if name in (*LABELS, *COUNTED) or (value is None and name != "loss"):
            continue
        before, who = known.get(name, (None, "default"))
        who = who if value in (before, {}) else f"notebook {params.notebook}"
        highest = name.startswith("loss_lr.") and value == max(spec.loss_lr.values())
        said = printed.get(name) or printed.get("loss_lr" if highest else name.removeprefix("loss."))
        published, source = ("" if said.value is None else said.value, said.source) if said else ("", "")
        if who.startswith("paper: "):
            published, source = value, who.removeprefix("paper: ")
        found[name] = value, published, who, source
    return found


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a RunSpec with a name for each option and each learning rate of the loss."""
    parts = {"loss_lr": fields.get("loss_lr", {}), "loss": fields.get("loss_options", {})}
    flat = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
    return {name: value for name, value in fields.items() if name not in ("loss_lr", "loss_options")} | flat


def _line(study: Study, spec: RunSpec, name: str, value: object, who: str) -> str:
    """File and line that name a setting beside its value, else that name it first, where who decided it writes."""
    if who == "reader" or who.startswith("search"):
        return "command line" if who == "reader" else f"results/small/searches/{spec.method}*.json"
    own, root = Path(inspect.getfile(study.specs)), repository_root() / "experiments"
    records = [own.with_name("methods.py"), root / "methods.py"]
    files = {
        "profile": [root / "profiles.py"],
        "protocol": [root / "training" / "protocols.py"],
        "data": [Path(inspect.getfile(study.decides))],
        "default": [root / "training" / "spec.py", *records, root / "params.py"],
    }.get(who.split()[0], [own] * who.startswith(("notebook", study.name)) + records)
    if who == "default" and spec.loss and name.startswith("loss."):
        files = [Path(inspect.getfile(inspect.unwrap(loss_builder(spec.loss))))]
    named = re.compile(rf"\b{re.escape(name.rpartition('.')[2])}\b[^#]*[:=]")
    beside = re.compile(rf"(?<![\w.]){re.escape(repr(value))}(?![\w.])")
    found = [
        (not beside.search(line), f"{str(file).removeprefix(f'{root.parent}/')}:{number}")
        for file in filter(Path.is_file, files)
        for number, line in enumerate(file.read_text(encoding="utf8").splitlines(), start=1)
        if named.search(line)
    ]
    return min(found, key=lambda of: of[0], default=(False, ""))[1]


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  " + "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]
