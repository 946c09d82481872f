"""What a notebook would run, setting by setting: its value, what the paper has, who decided it, and in which line."""

import inspect
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import papers
from experiments.files import repository_root
from experiments.methods import PARAMETER, Layers, Setting, expansion, spec_layers, spec_of
from experiments.params import Params
from experiments.study import Study
from experiments.training import builders, protocols
from experiments.training.spec import LABELS, RunSpec

ROW = "  {:30}  {:14}  {:14}  {:30}  {:44}  {}"
HEAD = ("setting", "value", "published", "decided by", "in", "source of what is published")
PLACES = {"profile": "profiles.py", "protocol": "training/protocols.py", "default": "training/spec.py"}


def text(study: Study, params: Params) -> str:
    """A table of what all trained methods share, then one per method, variant and protocol."""
    kinds: dict[str, list[RunSpec]] = {}
    for spec in study.specs_untrained(params):
        kinds.setdefault(repr(spec.replace(seed=0, replica=0, fold=None)), []).append(spec)
    if not kinds:
        return f"{study.name} trains nothing"
    blocks = []
    for one, *_ in kinds.values():
        found = settings(study, one, params).items()
        blocks.append([ROW.format(n, *map(str, of[:3]), _line(study, one, n, *of[::2]), of[3]) for n, of in found])
    trained = [rows for some, rows in zip(kinds.values(), blocks) if some[0].loss] or blocks
    shared = [row for row in trained[0] if all(row in rows for rows in trained)]
    runs = f"{sum(map(len, kinds.values()))} runs of {len(kinds)} kinds"
    lines = [f"{study.name}, profile {params.profile}, {params.dataset}: {runs}", ""]
    lines += ["all trained methods", ROW.format(*HEAD), *shared]
    for some, rows in zip(kinds.values(), blocks):
        seeds, folds = ({getattr(spec, name) for spec in some} for name in ("seed", "fold"))
        count = f"{len(seeds)} seeds" + f", {len(folds)} folds" * (folds != {None})
        title = f"{some[0].method} {some[0].setting}".strip() + f" ({some[0].protocol}; {count})"
        lines += ["", title, *(row for row in rows if row not in shared)]
    if params.profile == "paper" and study.deviations:
        lines += ["", "what differs from the print", *(f"  - {deviation}" for deviation in study.deviations)]
    return "\n".join(map(str.rstrip, lines))


def settings(study: Study, spec: RunSpec, params: Params) -> dict[str, tuple[object, object, str, str]]:
    """Every setting of a run -> its value, the published one, who decided it, and the source of the published one;
    empty where nothing is published. Options of the loss are "loss.option", its rates "loss_lr.name"."""
    layers: Layers = [("default", vars(RunSpec("", seed=0)) | {"loss_options": builders.defaults(spec.loss)})]
    given, printed = {"compile": "torch_compile"}, params.published(spec.method, spec.setting) if spec.loss else {}
    if method := papers.methods().get(spec.method):
        layers += spec_layers(method, params)
        if spec.protocol in protocols.PROTOCOLS:
            decided = protocols.decided(spec_of(method, params), spec.protocol, **expansion(params))
            layers.append((f"protocol {spec.protocol}", decided))
        given |= {f"loss.{option}": name for option, name in method.from_parameters.items()}
        printed = printed or method.published  # else the method's own
    known = {name: (value, who) for who, layer in layers for name, value in _flat(layer).items()}
    found: dict[str, tuple[object, object, str, str]] = {}
    for name, value in (_flat(layers[0][1]) | _flat(vars(spec))).items():
        if name in (*LABELS, "seed", "fold", "replica") or (value is None and name != "loss"):
            continue
        before, who = known.get(name, (None, "default"))
        if value not in (before, {}):
            who = f"notebook {study.name}"
        elif who == PARAMETER:
            who = params.origins.get(given.get(name, name), f"profile {params.profile}")
        highest = name.startswith("loss_lr.") and value == max(spec.loss_lr.values())
        said = printed.get(name) or printed.get("loss_lr" if highest else name.removeprefix("loss.")) or Setting("", "")
        if who.startswith("paper: "):
            said = Setting(value, who.removeprefix("paper: "))
        found[name] = value, "" if said.value is None else said.value, who, said.source
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
    root, decider = repository_root(), study.decides if who.startswith("data") else study.specs
    own = Path(inspect.getfile(getattr(decider, "func", decider)))  # of a partial
    files = [own] * who.startswith(("notebook", study.name, "data"))
    files += [own.with_name("methods.py"), root / "experiments/methods.py"]
    if who == "default" and spec.loss and name.startswith("loss."):
        files = [Path(inspect.getfile(inspect.unwrap(builders.loss_builder(spec.loss))))]
    elif place := PLACES.get(who.split()[0]):
        files = [root / "experiments" / place]
    named = rf"^[^#]*\b{re.escape(name.rpartition('.')[2])}\b[^#]*[:=]"
    beside = rf"(?<![\w.]){re.escape(str(value))}(?![\w.])"
    for wanted, file in itertools.product((beside, ""), filter(Path.is_file, files)):
        for number, line in enumerate(file.read_text(encoding="utf8").splitlines(), start=1):
            if re.search(named, line) and re.search(wanted, line):
                return f"{file.relative_to(root)}:{number}"
    return ""
