"""Notebook parameters: one flat model per notebook, strict. What a profile decides is None in the notebook's cell, and
`resolve` fills it in.

papermill warns about a misspelt parameter and exits 0; here it is an error, before any work is done.
"""

import ast
import contextlib
import difflib
import itertools
import json
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from pydantic import BaseModel, Field, ValidationInfo, create_model, field_validator

from experiments.checks import STRICT, Count, Number, Positive, Whole, checked, refuse_unknown
from experiments.datasets.manifests import is_own
from experiments.naming import stem_of, word
from experiments.profiles import BY_NETWORK, RECIPES, recipe_of
from experiments.training import protocols, search

INJECTED = "# Parameters"  # how the cell begins that papermill adds
CLOSE = 0.8  # the similarity of two names, see difflib, from which on one is taken for a misspelling of the other

MAY_BE_EMPTY = "may be empty"  # annotates a list that may have no item


class Choice(typing.NamedTuple):
    """What a study's `decides` depends on: the profile, the data set, and what the reader gave of the others."""

    profile: str
    dataset: str
    backbone: str | None = None
    embedding_size: int | None = None
    protocol: str | None = None


def _hidden(default: Any) -> Any:
    """A field that is no parameter."""
    return Field(default=default, exclude=True, repr=False)


class Params(BaseModel):
    """Parameters that every notebook accepts; `python -m experiments params` prints this list.

    profile: quick, small or paper. It decides every parameter below that is None; an explicit value wins.
    dataset: glyphs (quick); cub, cars, omniglot, mnist (small); cub, cars, sop, inshop (paper); cub-subset and the like
        for a partial copy; folder:PATH or manifest:FILE.csv for your own images, relative to the data root.
    backbone: any of `backbones.CATALOGUE`.
    weights: "none" (or an explicit None), "imagenet", a file, or "symbols": conv4 as pretrained on signs that are not
        among the glyphs.
    embedding_size: dimension of the embedding.
    train_from: what is trained of a pretrained network: "" everything, "head" the head alone, or a block of the
        backbone (fire6, layer4.0, blocks.8; a wrong name lists them) and all behind it. What lies below is computed
        once.
    image_size: pixels of the square crop; 0: the images at their own size.
    test_resize: pixels of the short side before the test-time centre crop; 0: image_size.
    original_images: True cuts crops from the image files at their full size; False from copies whose short side is
        test_resize, which take a fraction of the disk and the time.
    steps: optimisation steps; 0: epochs decide.
    epochs: passes over the training images; 0: steps decide.
    warmup_epochs: epochs with a frozen backbone, for a pretrained one.
    batch_size: images per step.
    samples_per_class: images of a class in a batch, of losses that need or can use several; 0: shuffled batches, and 4
        for losses on pairs.
    lr: learning rate of the network; a loss's own parameters have other rates, see the methods.py of the paper.
    seeds: number of runs per method, with seeds 0, 1, ...
    threads: CPU threads of one run; 0: all.
    eval_every_epochs: epochs between two evaluations; 0: as the protocol says, else after the last step only. An image
        costs a third of what it costs in training. The patience of a protocol counts evaluations.
    precision: "float32", or "bfloat16" for autocast in training, on GPUs or on CPUs with AMX; on other CPUs it does not
        pay. Published scores are always those of float32.
    """

    model_config = STRICT

    profile: str = "quick"
    dataset: str
    backbone: str
    weights: str
    embedding_size: Count
    train_from: str
    image_size: Whole
    test_resize: Whole
    original_images: bool = False
    steps: Whole
    epochs: Whole
    warmup_epochs: Number
    batch_size: Count
    samples_per_class: Whole
    lr: Positive
    seeds: Count
    threads: Whole
    eval_every_epochs: Number = 0.0
    precision: str = "float32"
    # where resolved parameters come from
    notebook: str = _hidden("")
    paper: str = _hidden("")
    changed: Mapping[str, Any] = _hidden({})  # what the reader gave beside the profile; names results files
    origins: Mapping[str, str] = _hidden({})  # who decided each parameter
    fixed: Mapping[str, Any] = _hidden({})  # fields of the RunSpec that the profile decides and that are no parameters
    searched: Mapping[str, int] = _hidden({})  # steps and epochs of the committed searches
    rates: tuple[float, ...] = _hidden(())  # all that searches try, of the network; empty: what methods say
    takes_searches: bool = _hidden(True)  # whether the runs take what committed searches found
    publishes: Callable[..., Mapping] = _hidden(lambda *run: {})  # see `Study.published`

    @field_validator("*", mode="before")
    @classmethod
    def _listed(cls, value: Any, info: ValidationInfo) -> Any:
        """The items of a list parameter; papermill's -p knows no lists: there "PFML,ProxyAnchor" stands for two."""
        name = info.field_name or ""
        wanted = cls.model_fields[name]
        if typing.get_origin(wanted.annotation) is not tuple or not isinstance(value, list | tuple | str | int | float):
            return value
        if isinstance(value, str):
            texts = [text.strip(" '\"") for text in value.strip("[]").split(",")] if value.strip("[]") else []
            value = texts if typing.get_args(wanted.annotation)[0] is str else [_number(text) for text in texts]
        items = tuple(value) if isinstance(value, list | tuple) else (value,)
        if any(items.count(item) > 1 for item in items) or not (items or MAY_BE_EMPTY in wanted.metadata):
            raise ValueError(f"{name} must have at least one item and none twice, got {list(items)}")
        return items

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Every parameter with its default, None where the profile decides."""
        fields = {name: field for name, field in cls.model_fields.items() if not field.exclude}
        return {name: None if field.is_required() else field.default for name, field in fields.items()}

    @property
    def stem(self) -> str:
        return stem_of(self.notebook, self.changed)

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump()

    def published(self, method: str, setting: str = "") -> Mapping:
        return self.publishes(self, method, setting)

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{name}</td><td>{value!r}</td></tr>" for name, value in self.as_dict().items())
        return f"<table><thead><tr><th>parameter</th><th>resolved value</th></tr></thead><tbody>{rows}</tbody></table>"

    def spec_options(self) -> dict[str, Any]:
        """The fields of a RunSpec that the parameters decide; 0 stands for None there."""
        as_given = ("dataset", "backbone", "embedding_size", "original_images", "batch_size", "lr", "precision")
        or_none = ("image_size", "test_resize", "steps", "epochs", "threads")
        fields = {name: getattr(self, name) for name in as_given} | {n: getattr(self, n) or None for n in or_none}
        fields |= {"weights": None if self.weights == "none" else self.weights}
        interval = {"eval_every": None, "eval_every_epochs": self.eval_every_epochs} if self.eval_every_epochs else {}
        return fields | dict(self.fixed) | interval

    def conditions(self) -> dict[str, Any]:
        """What the search of a method belongs to beside the method: the data, the network, what of it is trained, the
        batch and the budget. What is searched, and what no number depends on, has no part."""
        left_out = ("lr", "head_lr", "threads", "eval_every", "eval_every_epochs")
        decided = {name: value for name, value in self.spec_options().items() if name not in left_out}
        decided |= {name: value or None for name, value in self.search_budget().items()}
        further = ("train_from", "samples_per_class", "warmup_epochs")
        return json.loads(json.dumps(decided | {name: getattr(self, name) for name in further}))

    def search_budget(self) -> Mapping[str, int]:
        """Steps and epochs of the search whose results the runs take: those of the data set, also for a notebook that
        has a budget of its own, but where the reader asks for another budget."""
        mine = {name: getattr(self, name) for name in ("steps", "epochs")}
        return mine if self.changed.keys() & mine else self.searched

    def search_name(self, method: str) -> str:
        budget = {"dim": self.embedding_size, "batch": self.batch_size, **self.search_budget()}
        where = [self.dataset, self.backbone, self.weights, self.train_from or "whole"]
        numbers = [f"{name}={value}" for name, value in budget.items() if value]
        return f"{word(method)}--{','.join(map(word, where))},{','.join(numbers)}.json"

    @property
    def takes_committed(self) -> bool:
        """Whether runs take committed searches: at the profile small, unless the notebook searches itself or images are
        the reader's own."""
        return self.profile == "small" and self.takes_searches and not (search_trials_of(self) or is_own(self.dataset))

    def searches(self) -> dict[str, dict[str, Any]]:
        """The committed searches whose results the runs take, by method."""
        if not self.takes_committed:
            return {}
        named = search.folder(self.profile).glob(f"*{self.search_name('')}")
        committed, mine = [search.read(path) for path in sorted(named)], self.conditions()
        valid = [record for record in committed if record["conditions"] == mine]
        shared = {name: record for record in valid for name in record["methods"]}
        return shared | {record["method"]: record for record in valid}

    def untuned(self) -> typing.Self:
        return self.model_copy(update={"takes_searches": False})


def parameters(*shared: Any, **own: Any) -> type[Params]:
    """The parameters of a notebook: those of `Params`, those that it shares with others of its paper, and its own, each
    a type, or (type, default) where no profile decides it."""
    fields: dict[str, Any] = {name: kind if isinstance(kind, tuple) else (kind, ...) for name, kind in own.items()}
    return create_model("Params", __base__=(*shared, Params), **fields)


def protocol_of(params: Params) -> str:
    return getattr(params, "protocol", "conventional")


def search_trials_of(params: Params) -> int:
    return getattr(params, "search_trials", 0)


def resolve(study: Any, given: Mapping[str, Any]) -> Any:
    """The parameters of a `Study` from names and values, checked and resolved, see `Study.from_cell`."""
    defaults = study.params.defaults()
    refuse_unknown(f"{study.name} has no parameter", given, defaults)
    if "weights" in given and given["weights"] is None:  # as papermill reads -p weights None
        given = {**given, "weights": "none"}
    given = {n: tuple(value) if isinstance(value, list) else value for n, value in given.items() if value is not None}
    checked(study.params, given, whole=False)
    profile = given.get("profile", "quick")
    choice: dict[str, Any] = {name: given[name] for name in ("dataset", "protocol") if name in given}
    layers = _layers(study, given)
    decided = merged(layers.items())
    given = {name: value for name, value in given.items() if value != defaults[name] or name in decided}
    values = {name: decided[name] for name in defaults if name in decided} | given
    if given.get("epochs") and "steps" not in given:  # an explicit epochs replaces the profile's steps, and the reverse
        values["steps"] = 0
    if given.get("steps") and "epochs" not in given:
        values["epochs"] = 0
    params = checked(study.params, values)
    _refuse_nonsense(study, params)
    # dataset, network and protocol are compared with the profile's, the others with what the profile means for these
    standard = defaults | merged(_layers(study, {"profile": profile}).items())
    if (profile, decided["dataset"], given.get("backbone")) in BY_NETWORK:  # a network with a recipe of its own
        choice["backbone"] = given["backbone"]
    usual = defaults | merged(_layers(study, {"profile": profile} | choice).items())
    now = {name: getattr(params, name) for name in given if name != "profile"}
    base = layers[f"profile {profile}"] | layers[f"data set {params.dataset}"]
    decided_by = {name: origin for origin, layer in layers.items() for name in layer}
    about = {
        "notebook": study.name,
        "paper": study.paper,
        "changed": {n: value for n, value in now.items() if value != (standard if n in choice else usual)[n]},
        "origins": {name: "reader" if name in given else decided_by.get(name, "default") for name in defaults},
        "fixed": decided.get("fixed", {}),
        "searched": base.get("searched", {name: base[name] for name in ("steps", "epochs")}),
        "rates": base.get("rates", ()),
        "takes_searches": study.takes_searches,
        "publishes": study.published,
    }
    return params.model_copy(update=about)


def _layers(study: Any, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    profile = given.get("profile", "quick")
    tables = (study.shared, study.profiles)
    notebook = merged((key, table.get(key, {})) for table in tables for key in ("*", profile))
    dataset = given.get("dataset") or notebook.get("dataset") or next(iter(RECIPES.get(profile, {})), "")
    protocol: dict[str, Any] = {}
    if "protocol" in study.params.model_fields:
        name = given.get("protocol") or notebook.get("protocol", "conventional")
        protocol = {"protocol": name, "search_trials": 0}
        if profile == "paper":  # its published settings, else only its name
            found, settings = protocols.find(name), protocols.published_settings(name, dataset, given.get("backbone"))
            protocol |= {"seeds": found.repeats, "search_trials": found.trials}
            known = {key: value for key, value in settings.items() if key in recipe_of("paper", dataset)}
            protocol |= {key: 0 if value is None else value for key, value in known.items()}
    asked = {name: given.get(name) for name in ("backbone", "embedding_size", "protocol")}
    by_data = study.decides(Choice(profile, dataset, **asked))
    if (profile, dataset, asked["backbone"]) in BY_NETWORK:  # which has epochs in place of steps
        notebook, by_data = ({n: v for n, v in layer.items() if n != "steps"} for layer in (notebook, by_data))
    return {
        f"profile {profile}": recipe_of(profile, dataset, given.get("backbone")) | {"dataset": dataset},
        f"protocol {protocol.get('protocol', '')}": protocol,
        f"data set {dataset}": by_data,
        f"{study.name} at profile {profile}": notebook,
    }


def merged(layers: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """What layers (who decides, what it decides) come to: a later one replaces what earlier ones say."""
    return {name: value for _, decided in layers for name, value in decided.items()}


def _refuse_nonsense(study: Any, params: Params) -> None:
    """ValueError for what makes no sense in this study; whatever a run refuses is said where it is specified."""
    for name, levels in study.references.items():
        there = getattr(params, name)
        levels = [getattr(params, level) if isinstance(level, str) else level for level in levels]
        if lacking := [level for level in levels if level not in there]:
            raise ValueError(
                f"{name} must have {lacking[0]:g}, which other levels are compared with, got {list(there)}; add it"
            )
    name, known = protocol_of(params), protocols.PROTOCOLS
    in_parts = [other for other, protocol in known.items() if protocol.folds or "fold" in protocol.structure]
    if study.one_network and name in in_parts:
        raise ValueError(
            f"{study.name} measures networks that all training classes trained, and protocol {name!r} holds some out; "
            f"choose one of {', '.join(other for other in known if other not in in_parts)}"
        )
    if search_trials_of(params) and name not in in_parts:
        raise ValueError(
            f"protocol {name!r} has no validation classes to tune on: no search (search_trials=0) or one of "
            f"{', '.join(in_parts)}"
        )


def of_cell(namespace: Mapping[str, typing.Any], parameters: Collection[str]) -> dict[str, typing.Any]:
    """What a notebook says of its parameters, by name, from the `globals()` of its kernel or script.

    Of a kernel the names count that this cell assigned when it ran last, with those of the cells between it and
    `from_cell`, one of which papermill injects; of a script, which has no history of cells, all. Names of neither
    `parameters` nor something close to one are left out, unless papermill injected them.
    """
    history = namespace.get("In") or []
    own = [n for n, cell in enumerate(history) if "profile" in _assigned(cell) and not cell.startswith(INJECTED)]
    injected: set[str] = set()
    if own:
        behind = itertools.takewhile(lambda cell: "from_cell" not in cell, history[own[-1] + 1 :])
        cells = [history[own[-1]], *behind]
        injected = injected.union(*(_assigned(cell) for cell in cells if cell.startswith(INJECTED)))
        names = injected.union(*map(_assigned, cells))
    else:
        plain = bool | int | float | str | list | tuple | dict | None
        names = {name for name, value in namespace.items() if isinstance(value, plain)}
    return {
        name: namespace[name]
        for name in sorted(names & namespace.keys())
        if name in parameters or name in injected or difflib.get_close_matches(name, parameters, 1, CLOSE)
    }


def _assigned(source: str) -> set[str]:
    """The names that a cell assigns; none where it is no Python."""
    try:
        nodes = ast.walk(ast.parse(source))
    except SyntaxError:
        return set()
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _number(text: str) -> float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
