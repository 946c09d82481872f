"""What a notebook would run, setting by setting: its value, what the paper has, who decided it, and in which line.

Who decided is known from the layers that the runs are built of (`methods.spec_layers`, `methods.option_layers`,
`protocols.decided`). Only what a notebook's own function changes on top is found by comparing with them.
"""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import papers
from experiments.files import repository_root
from experiments.methods import (
    METHOD,
    NOT_REPORTED,
    PARAMETER,
    Layers,
    Method,
    Setting,
    option_layers,
    spec_layers,
    spec_of,
)
from experiments.params import Params, search_trials_of
from experiments.study import Study
from experiments.training import protocols
from experiments.training.builders import loss_builder
from experiments.training.search import defaults
from experiments.training.spec import LABELS, RunSpec

COUNTED = ("seed", "fold", "replica")  # a block says how many there are
Settings = dict[str, tuple[object, str, str]]  # name -> value, who decided it, what the paper says otherwise


def text(study: Study, params: Params) -> str:
    """A block of what all trained methods share, then one per method, variant and protocol."""
    kinds: dict[str, list[RunSpec]] = {}
    for spec in study.specs_untrained(params):
        plain = spec.replace(**dict.fromkeys(COUNTED[::2], 0), fold=None)
        kinds.setdefault(f"{plain.as_dict()}{plain.method}{plain.setting}{plain.protocol}", []).append(spec)
    if not kinds:
        return f"{study.name} trains nothing"
    records = papers.methods()
    blocks = [
        {
            name: (*row, _path(study, one, name, *row[:2]))
            for name, row in settings(one, params, records.get(one.method)).items()
        }
        for one, *_ in kinds.values()
    ]
    trained = [block for block in blocks if block["loss"][0] is not None] or blocks
    shared = {name: row for name, row in trained[0].items() if all(block.get(name) == row for block in trained)}
    title = f"{study.name}, profile {params.profile}, {params.dataset}: {sum(map(len, kinds.values()))} runs"
    lines = [
        f"{title} of {len(kinds)} kinds",
        "",
        "all trained methods: setting, value, path, who decided",
        *_table(shared),
    ]
    for block, specs in zip(blocks, kinds.values()):
        one, seeds, folds = specs[0], len({spec.seed for spec in specs}), len({spec.fold for spec in specs})
        count = f"{seeds} seeds" + f", {folds} folds" * (one.fold is not None)
        lines += ["", f"{' '.join(filter(None, (one.method, one.setting)))} ({one.protocol}; {count})"]
        lines += _table({name: row for name, row in block.items() if row != shared.get(name)})
    if params.profile == "paper" and study.deviations:
        lines += ["", "what differs from the print", *(f"  - {deviation}" for deviation in study.deviations)]
    if trials := search_trials_of(params):
        lines += ["", f"a search of {trials} trials on validation classes replaces the searched options of every loss"]
    return "\n".join(lines)


def settings(spec: RunSpec, params: Params, method: Method | None) -> Settings:
    """Every setting of a run with its origin; options of the loss as "loss.option", rates as "loss_lr.parameter"."""
    decided: dict[str, tuple[object, str]] = {}
    if method is not None:
        how: dict[str, Any] = {"published": params.profile == "paper", "keep": params.spec_options()}
        known = spec.protocol in protocols.PROTOCOLS
        protocol = protocols.decided(spec_of(method, params, spec.seed), spec.protocol, **how) if known else {}
        options: Layers = [
            (who, {f"loss.{name}": value for name, value in layer.items()})
            for who, layer in option_layers(method, params, params.backbone)
        ]
        given = {f"loss.{option}": name for option, name in method.from_parameters.items()} | {
            "compile": "torch_compile"
        }
        for who, layer in [*spec_layers(method, params), (f"protocol {spec.protocol}", protocol), *options]:
            for name, value in _flat(layer).items():
                origin = params.origins.get(given.get(name, name), f"profile {params.profile}")
                decided[name] = value, origin if who == PARAMETER else who
    printed, highest = _said(spec, params, method), max(spec.loss_lr.values(), default=None)
    usual = _flat(vars(RunSpec("", seed=0)) | {f"loss.{name}": value for name, value in defaults(spec.loss).items()})
    entries: Settings = {}
    for name, value in (usual | _flat(vars(spec) | {f"loss.{n}": v for n, v in spec.loss_options.items()})).items():
        if name in (*LABELS, *COUNTED) or (value is None and name != "loss"):
            continue
        before, origin = decided.get(name, (usual.get(name), "default"))
        origin = origin if value == before or (name not in decided and value == {}) else f"notebook {params.notebook}"
        alias = "loss_lr" if name.startswith("loss_lr.") and value == highest else name.removeprefix("loss.")
        entries[name] = value, *_with_paper(origin, value, printed.get(name) or printed.get(alias))
    return entries


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a RunSpec with a name for each learning rate of the loss."""
    rates = {f"loss_lr.{name}": rate for name, rate in fields.get("loss_lr", {}).items()}
    return {name: value for name, value in fields.items() if name not in ("loss_lr", "loss_options")} | rates


def _said(spec: RunSpec, params: Params, method: Method | None) -> dict[str, Setting]:
    """What the notebook's paper says of a run, else what the method's own paper says of it."""
    printed = params.published(spec.method, spec.setting) if spec.loss else {}
    return dict(printed or (method.published if method is not None else {}))


def _with_paper(origin: str, value: object, setting: Setting | None) -> tuple[str, str]:
    """An origin, "paper" where the method's record took it from there, and what else the paper says of the setting."""
    if setting is None or origin.startswith("paper"):
        return origin, ""
    if setting == NOT_REPORTED:
        return origin, NOT_REPORTED.source
    if setting.value != value:
        return origin, f"the paper has {setting.value}: {setting.source}"
    return (
        (f"paper: {setting.source}", "")
        if origin in (METHOD, "default")
        else (origin, f"as the paper: {setting.source}")
    )


def _path(study: Study, spec: RunSpec, name: str, value: object, origin: str) -> str:
    """File and line where a value was decided: where a file of its origin names the setting beside this value, else
    where it names it first."""
    if origin == "reader" or origin.startswith("search"):
        return "command line" if origin == "reader" else f"results/small/searches/{spec.method}*.json"
    own, root = Path(inspect.getfile(study.specs)), repository_root() / "experiments"
    records = [own.with_name("methods.py"), root / "methods.py"]
    files = {
        "profile": [root / "profiles.py"],
        "protocol": [root / "training" / "protocols.py"],
        "data": [Path(inspect.getfile(study.decides))],
        "notebook": [own, *records],
        "default": [root / "training" / "spec.py", *records, root / "params.py"],
        study.name: [own, *records],
    }.get(origin.split()[0], records)
    if origin == "default" and spec.loss and name.startswith("loss."):
        files = [Path(inspect.getfile(inspect.unwrap(loss_builder(spec.loss))))]
    named = re.compile(rf"\b{re.escape(name.rpartition('.')[2])}\b[^#]*[:=]")
    found = [
        (
            not re.search(rf"(?<![\w.]){re.escape(repr(value))}(?![\w.])", line),
            place,
            number,
            f"{str(file).removeprefix(f'{root.parent}/')}:{number}",
        )
        for place, file in enumerate(file for file in files if file.is_file())
        for number, line in enumerate(file.read_text(encoding="utf8").splitlines(), start=1)
        if named.search(line)
    ]
    return min(found, default=(0, True, 0, ""))[3]


def _table(rows: Mapping[str, tuple[Any, ...]]) -> list[str]:
    cells = [(name, str(value), path, "; ".join(filter(None, who))) for name, (value, *who, path) in rows.items()]
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(3)]
    return [f"  {'  '.join(f'{cell:{width}}' for cell, width in zip(row, widths))}  {row[3]}" for row in cells]
