"""What a notebook would run, setting by setting: its value, what the paper has, who decided it, and in which line."""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import papers
from experiments.files import repository_root
from experiments.methods import PARAMETER, Layers, spec_layers, spec_of
from experiments.params import Params
from experiments.study import Study
from experiments.training import protocols
from experiments.training.builders import defaults, loss_builder
from experiments.training.spec import LABELS, RunSpec

ROW = "  {:30}  {:14}  {:14}  {:30}  {:44}  {}"

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
        blocks.append(
            [ROW.format(name, *map(str, of[:3]), _line(study, one, name, *of[::2]), of[3]) for name, of in found]
        )
    trained = [block for block, some in zip(blocks, kinds.values()) if some[0].loss] or blocks
    shared = [row for row in trained[0] if all(row in block for block in trained)]
    head = ROW.format("setting", "value", "published", "decided by", "in", "source of what is published")
    runs = f"{sum(map(len, kinds.values()))} runs of {len(kinds)} kinds"
    lines = [f"{study.name}, profile {params.profile}, {params.dataset}: {runs}", "", "all trained methods", head]
    lines += shared
    for block, some in zip(blocks, kinds.values()):
        one, folds = some[0], len({spec.fold for spec in some})
        count = f"{len({spec.seed for spec in some})} seeds" + f", {folds} folds" * (one.fold is not None)
        lines += ["", f"{' '.join(filter(None, (one.method, one.setting)))} ({one.protocol}; {count})"]
        lines += [row for row in block if row not in shared]
    if params.profile == "paper" and study.deviations:
        lines += ["", "what differs from the print", *(f"  - {deviation}" for deviation in study.deviations)]
    return "\n".join(map(str.rstrip, lines))


def settings(study: Study, spec: RunSpec, params: Params) -> dict[str, tuple[object, object, str, str]]:
    """Every setting of a run -> its value, the published one, who decided it, and the source of the published one;
    empty where nothing is published. Options of the loss are "loss.option", its rates "loss_lr.name"."""
    layers: Layers = [("default", vars(RunSpec("", seed=0)) | {"loss_options": defaults(spec.loss)})]
    given, printed = {"compile": "torch_compile"}, params.published(spec.method, spec.setting) if spec.loss else {}
    if method := papers.methods().get(spec.method):
        layers += spec_layers(method, params)
        if spec.protocol in protocols.PROTOCOLS:
            how: dict[str, Any] = {"published": params.profile == "paper", "keep": params.spec_options()}
            decided = protocols.decided(spec_of(method, params, spec.seed), spec.protocol, **how)
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
    own = Path(
        inspect.getfile(getattr(study.decides, "func", study.decides) if who.startswith("data") else study.specs)
    )
    root = repository_root()
    records = [own.with_name("methods.py"), root / "experiments/methods.py"]
    files = [own] * who.startswith(("notebook", study.name, "data")) + records
    if place := PLACES.get(who.split()[0]):
        files = [root / "experiments" / place]
    if who == "default" and spec.loss and name.startswith("loss."):
        files = [Path(inspect.getfile(inspect.unwrap(loss_builder(spec.loss))))]
    named = re.compile(rf"\b{re.escape(name.rpartition('.')[2])}\b[^#]*[:=]")
    beside = re.compile(rf"(?<![\w.]){re.escape(repr(value))}(?![\w.])")
    found = [
        (not beside.search(line), f"{file.relative_to(root)}:{number}")
        for file in filter(Path.is_file, files)
        for number, line in enumerate(file.read_text(encoding="utf8").splitlines(), start=1)
        if named.search(line)
    ]
    return min(found, key=lambda of: of[0], default=(False, ""))[1]
