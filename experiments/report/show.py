"""What a notebook would run, setting by setting: its value, what the paper has, and who decided it."""

from typing import Any

from experiments import papers
from experiments.analysis import claims
from experiments.methods import PARAMETER, Layers, Method, Setting, expansion, spec_layers, spec_of
from experiments.params import Params
from experiments.study import Study
from experiments.training import builders, protocols
from experiments.training.spec import LABELS, RunSpec

ROW = "  {0:30}  {1!s:14}  {2!s:14}  {3:44}  {4}"
HEAD = ("setting", "value", "published", "decided by", "source of what is published")


def text(study: Study, params: Params) -> str:
    """A table of what all trained methods share, then one per method, variant and protocol."""
    runs = {f"{run.protocol}: {run.method} {run.setting}": run for run in study.specs_untrained(params) if not run.seed}
    tables = {title: [ROW.format(*row) for row in settings(study, run, params)] for title, run in runs.items()}
    trained = [tables[title] for title, run in runs.items() if run.loss] or [[]]
    shared = [row for row in trained[0] if all(row in rows for rows in trained)]
    lines = [f"{study.name}, profile {params.profile}, {params.dataset}, {params.seeds} seeds"]
    lines += ["", "all trained methods", ROW.format(*HEAD), *shared]
    for title, rows in tables.items():
        lines += ["", title, *(row for row in rows if row not in shared)]
    own = [row for row in claims.rows_of("deviations.csv") if row["paper"] == study.paper]
    told = [f"  - {row['deviation']}" for row in own if row["notebook"] in ("", study.name)]
    if params.profile == "paper" and runs and told:
        lines += ["", "what differs from the print", *told]
    return "\n".join(map(str.rstrip, lines))


def settings(study: Study, spec: RunSpec, params: Params) -> list[tuple[str, Any, Any, str, str]]:
    """A row per setting of a run, see HEAD; options of the loss are "loss.option", its rates "loss_lr.name"."""
    method = papers.methods().get(spec.method) or Method(spec.method, spec.loss, dict(spec.loss_options))
    protocol = protocols.decided(spec_of(method, params), spec.protocol, **expansion(params))
    layers: Layers = [("default", vars(RunSpec("")) | {"loss_options": builders.defaults(spec.loss)})]
    layers += [*spec_layers(method, params), (f"protocol {spec.protocol}", protocol)]
    decided = {name: (value, who) for who, layer in layers for name, value in _flat(layer).items()}
    given = {f"loss.{option}": name for option, name in method.from_parameters.items()}
    published, rows = params.published(method.name, spec.setting) or method.published, []
    for name, value in (_flat(layers[0][1]) | _flat(vars(spec))).items():
        if value is None or name in (*LABELS, "seed", "fold", "replica"):
            continue
        before, who = decided.get(name, (None, ""))
        if value != before:
            who = f"notebook {study.name}"
        elif who == PARAMETER:
            who = params.origins.get(given.get(name, name), f"profile {params.profile}")
        said = published.get(name) or published.get(name.removeprefix("loss."))
        said = said or published.get(name.partition(".")[0], Setting("", ""))
        theirs = "" if said.value is None else said.value
        rows.append((name, value, theirs, who, said.source))
    return rows


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a RunSpec with a name for each option and each learning rate of the loss."""
    rates = {f"loss_lr.{name}": rate for name, rate in fields.get("loss_lr", {}).items()}
    options = {f"loss.{name}": value for name, value in fields.get("loss_options", {}).items()}
    return {name: value for name, value in fields.items() if name not in ("loss_lr", "loss_options")} | rates | options
