"""What a notebook would run, setting by setting, and who decided each: the paper, a protocol, the profile, the reader.

Origins are those of the layers that the runs are built of (`methods.spec_layers`, `methods.option_layers`,
`protocols.decided`). Only what a notebook's own function changes on top is found by comparing with them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiments import papers
from experiments.methods import (
    METHOD,
    PARAMETER,
    UNSAID,
    Layers,
    Method,
    Setting,
    merged,
    option_layers,
    spec_layers,
    spec_of,
)
from experiments.params import Params
from experiments.profiles import benchmark_of
from experiments.study import Study
from experiments.training import protocols
from experiments.training.search import defaults
from experiments.training.spec import LABELS, RunSpec

NAMES = {"compile": "torch_compile"}  # fields of the RunSpec that parameters call otherwise
COUNTED = ("seed", "fold", "replica")  # a block says how many there are
Settings = dict[str, tuple[object, str, str]]  # name -> value, who decided it, what the paper says otherwise


def text(study: Study, params: Params) -> str:
    """A block of what all methods share, then one per method, variant and protocol."""
    groups: dict[tuple[str, str, str, str], list[RunSpec]] = {}
    for spec in study.specs_untrained(params):
        content = {name: value for name, value in spec.as_dict().items() if name not in COUNTED}
        groups.setdefault((spec.method, spec.setting, spec.protocol, repr(content)), []).append(spec)
    if not groups:
        return f"{params.notebook} trains nothing"
    records = papers.methods()
    blocks = [settings(specs[0], params, records.get(key[0])) for key, specs in groups.items()]
    trained = [block for block in blocks if block["loss"][0] is not None] or blocks
    shared = {
        name: entry if all(block[name] == entry for block in trained) else (*entry[:2], "")
        for name, entry in trained[0].items()
        if all(block.get(name, ())[:2] == entry[:2] for block in trained)
    }
    runs = sum(map(len, groups.values()))
    title = f"{params.notebook}, profile {params.profile}, {params.dataset}: {runs} runs of {len(groups)} kinds"
    lines = [title, "", f"all {'trained ' * (len(trained) < len(blocks))}methods", *_table(shared)]
    for (method, setting, protocol, _), specs, block in zip(groups, groups.values(), blocks):
        seeds, folds = (len({getattr(spec, name) for spec in specs}) for name in ("seed", "fold"))
        count = f"{seeds} seeds" + f", {folds} folds" * (specs[0].fold is not None)
        lines += ["", f"{' '.join(filter(None, (method, setting)))} ({protocol}; {count})"]
        lines += _table({name: entry for name, entry in block.items() if entry != shared.get(name)})
    if params.profile == "paper" and params.differs:
        lines += ["", "what differs from the print", *(f"  - {difference}" for difference in params.differs)]
    if trials := params.search_trials:
        lines += ["", f"a search of {trials} trials on validation classes replaces the searched options of every loss"]
    return "\n".join(lines)


def settings(spec: RunSpec, params: Params, method: Method | None) -> Settings:
    """Every setting of a run with its origin; options of the loss as "loss.option", rates as "loss_lr.parameter"."""
    fields, options, origins = {}, {}, {}
    if method is not None:
        base = spec_of(method, params, spec.seed)
        how: dict[str, Any] = {"published": params.profile == "paper", "keep": params.spec_options()}
        by_protocol = protocols.decided(base, spec.protocol, **how) if spec.protocol in protocols.PROTOCOLS else {}
        layers = [*spec_layers(method, params), (f"protocol {spec.protocol}", by_protocol)]
        fields, options = merged(layers), merged(option_layers(method, params, params.backbone))
        origins = _origins(layers, params, {}) | {
            f"loss.{name}": origin
            for name, origin in _origins(
                option_layers(method, params, params.backbone), params, method.from_parameters
            ).items()
        }
    entries: Settings = {}
    printed = _said(spec, params, method)
    for name in (field.name for field in dataclasses.fields(RunSpec)):
        value = getattr(spec, name)
        if name in (*LABELS, *COUNTED, "loss_options", "loss_lr"):
            continue
        usual = fields.get(name, RunSpec.__dataclass_fields__[name].default)
        same = value == usual or (name not in fields and value == {})
        origin = origins.get(name, "default") if same else f"notebook {params.notebook}"
        entries[name] = value, *_with_paper(origin, name, value, printed)
    for name, value in spec.loss_lr.items():
        same = fields.get("loss_lr", {}).get(name) == value
        origin = origins.get("loss_lr", METHOD) if same else f"notebook {params.notebook}"
        alias = "loss_lr" if value == max(spec.loss_lr.values()) else ""
        entries[f"loss_lr.{name}"] = value, *_with_paper(origin, f"loss_lr.{name}", value, printed, alias)
    for name, value in (defaults(spec.loss) | dict(spec.loss_options)).items():
        if name not in spec.loss_options:
            origin = "default"
        else:
            same = options.get(name) == value
            origin = origins.get(f"loss.{name}", "") if same else f"notebook {params.notebook}"
        entries[f"loss.{name}"] = value, *_with_paper(origin, f"loss.{name}", value, printed, name)
    return {name: entry for name, entry in entries.items() if entry[0] is not None or name == "loss"}


def _origins(layers: Layers, params: Params, parameter_of: Mapping[str, str]) -> dict[str, str]:
    """Who decided each name; a parameter's origin stands for the layer of the parameters."""
    origins = {}
    for layer, decided in layers:
        for name in decided:
            parameter = parameter_of.get(name, NAMES.get(name, name))
            origins[name] = params.origins.get(parameter, f"profile {params.profile}") if layer == PARAMETER else layer
    return origins


def _said(spec: RunSpec, params: Params, method: Method | None) -> dict[str, Setting]:
    """What the paper says of a run: at the profile paper what `Params.published` says of this very run; else, by its
    short names, the method's record for the benchmark, for all sets, or for CUB."""
    if params.profile == "paper" and spec.loss and (printed := params.published(spec.method, spec.setting)):
        return dict(printed)
    published = method.published if method is not None else {}
    where = next((key for key in (benchmark_of(params.dataset), "*", "cub") if key in published), None)
    printed = dict(published[where]) if where else {}
    if where in (None, "*"):
        return printed
    return {
        name: setting if setting == UNSAID else Setting(setting.value, f"{setting.source} ({where})")
        for name, setting in printed.items()
    }


def _with_paper(
    origin: str, name: str, value: object, printed: Mapping[str, Setting], alias: str = ""
) -> tuple[str, str]:
    """An origin, "paper" where the method's record took it from there, and what else the paper says of the setting."""
    setting = printed.get(name) or printed.get(alias)
    if setting is None or origin.startswith("paper"):
        return origin, ""
    if setting == UNSAID:
        return origin, UNSAID.source
    if setting.value != value:
        return origin, f"the paper has {setting.value}: {setting.source}"
    if origin in (METHOD, "default"):
        return f"paper: {setting.source}", ""
    return origin, f"as the paper: {setting.source}"


def _table(entries: Settings) -> list[str]:
    rows = [(name, str(value), "; ".join(filter(None, origin))) for name, (value, *origin) in entries.items()]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [f"  {name:{widths[0]}}  {value:{widths[1]}}  {origin}" for name, value, origin in rows]
