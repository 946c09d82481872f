"""Notebook parameters: flat, typed, strict. What a profile decides is None in the notebook and filled in here.

papermill warns about a misspelt parameter and exits 0; here it is an error, before any work is done.
"""

import ast
import contextlib
import copy
import dataclasses
import difflib
import hashlib
import itertools
import json
import math
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from experiments.datasets.manifests import is_own
from experiments.profiles import RECIPES, recipe_of

INJECTED = "# Parameters"  # how the cell begins that papermill adds
CLOSE = 0.8  # the similarity of two names, see difflib, from which on one is taken for a misspelling of the other


@dataclass(frozen=True)
class Params:
    """Parameters that every notebook accepts; `python -m experiments params` prints this list.

    profile: quick, small or paper. It decides every parameter below that is None; an explicit value wins.
    dataset: glyphs (quick); cub, cars, omniglot, mnist (small); cub, cars, sop, inshop (paper); cub-subset and the like
        for a partial copy; folder:PATH or manifest:FILE.csv for your own images, relative to the data root.
    backbone: any of `python -m experiments backbones`.
    weights: "none" (or an explicit None), "imagenet", a file, or "symbols": conv4 as pretrained on signs that are not
        among the glyphs.
    embedding_size: dimension of the embedding.
    train_from: what is trained of a pretrained network: "" everything, "head" the head alone, or a block of the
        backbone (fire6, layer4.0, blocks.8; a wrong name lists them) and all behind it. What lies below is computed
        once.
    image_size: pixels of the square crop; 0: the images as they are.
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
    torch_compile: True compiles the network.
    """

    notebook: typing.ClassVar[str] = ""
    paper: typing.ClassVar[str] = ""
    # A notebook changes a profile's recipe so, e.g. {"quick": {"steps": 150}}
    overrides: typing.ClassVar[dict[str, dict[str, typing.Any]]] = {}
    # What the runs of the profile paper have otherwise than the print, for `config`
    differs: typing.ClassVar[tuple[str, ...]] = ()
    # Parameters that may not be 0, beside those that the classes it extends name
    positive: typing.ClassVar[tuple[str, ...]] = ("embedding_size", "batch_size", "lr", "seeds")
    may_be_empty: typing.ClassVar[tuple[str, ...]] = ()  # lists that may have no item
    # {a parameter that is a sweep: levels it must have, or the parameter that is one, because its tables and figures
    # compare with them}
    references: typing.ClassVar[dict[str, tuple[float | str, ...]]] = {}

    # For notebooks without these parameters: the protocol, and how many trials a search for each method's
    # hyperparameters has (0: no search)
    protocol = "conventional"
    search_trials = 0
    # Whether it measures the one network that a seed trains, so that no protocol with folds will do
    one_network: typing.ClassVar[bool] = False
    # Whether its runs take what committed searches found; False: it is about the published settings
    takes_searches: typing.ClassVar[bool] = True

    # Of each resolved instance, no fields: what was changed against the profile, and who decided each parameter
    _explicit: typing.ClassVar[dict[str, typing.Any]]
    origins: typing.ClassVar[dict[str, str]]

    profile: str = "quick"
    dataset: str | None = None
    backbone: str | None = None
    weights: str | None = None
    embedding_size: int | None = None
    train_from: str | None = None
    image_size: int | None = None
    test_resize: int | None = None
    original_images: bool = False
    steps: int | None = None
    epochs: int | None = None
    warmup_epochs: float | None = None
    batch_size: int | None = None
    samples_per_class: int | None = None
    lr: float | None = None
    seeds: int | None = None
    threads: int | None = None
    eval_every_epochs: float = 0.0
    precision: str = "float32"
    torch_compile: bool = False

    @classmethod
    def from_values(cls, given: Mapping[str, typing.Any]) -> typing.Self:
        """The parameters from names and values, checked and resolved, see `Study.from_cell`."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in given:
            if name not in fields:
                close = difflib.get_close_matches(name, fields, 1)
                hint = f"; did you mean {close[0]!r}?" if close else "."
                raise ValueError(
                    f"{cls.notebook or cls.__name__} has no parameter {name!r}{hint} It takes: {', '.join(fields)}"
                )
        hints = typing.get_type_hints(cls)
        values = {name: _checked(name, value, hints[name]) for name, value in given.items()}
        if "weights" in values and values["weights"] is None:  # as papermill reads -p weights None
            values["weights"] = "none"
        return cls(**values)._resolved()

    def _resolved(self) -> typing.Self:
        overrides = dict(self.overrides.get(self.profile, {}))
        dataset = self.dataset or overrides.get("dataset") or next(iter(RECIPES.get(self.profile, {})), "")
        protocol = self._protocol_recipe(dataset)
        layers = {  # later ones replace what earlier ones say
            f"profile {self.profile}": recipe_of(self.profile, dataset) | {"dataset": dataset},
            f"data set {dataset}": self._dataset_recipe(dataset),
            f"protocol {protocol.get('protocol', '')}": protocol,
            f"{self.notebook} at profile {self.profile}": overrides,
        }
        default = {name: value for decided in layers.values() for name, value in decided.items()}
        changes = {
            field.name: default[field.name]
            for field in dataclasses.fields(self)
            if getattr(self, field.name) is None and field.name in default
        }
        resolved = dataclasses.replace(self, **changes)
        if self.epochs and self.steps is None:  # an explicit epochs replaces the profile's steps, and the reverse
            resolved = dataclasses.replace(resolved, steps=0)
        if self.steps and self.epochs is None:
            resolved = dataclasses.replace(resolved, epochs=0)
        missing = [f.name for f in dataclasses.fields(resolved) if getattr(resolved, f.name) is None]
        if missing:
            raise ValueError(f"{self.notebook}: profile {self.profile!r} gives no value for {', '.join(missing)}")
        resolved._refuse_nonsense()
        object.__setattr__(resolved, "_explicit", self._differs_from_profile(resolved))
        origins = {name: origin for origin, decided in layers.items() for name in decided if name in changes}
        own = {f.name: "default" if getattr(self, f.name) == f.default else "reader" for f in dataclasses.fields(self)}
        object.__setattr__(resolved, "origins", own | origins)
        return resolved

    def _refuse_nonsense(self) -> None:
        from experiments.networks import backbones
        from experiments.training import protocols

        positive = {name for ancestor in type(self).__mro__ for name in vars(ancestor).get("positive", ())}
        for name, value in self.as_dict().items():
            items = value if isinstance(value, tuple) else (value,)
            if (not items and name not in self.may_be_empty) or len(set(items)) < len(items):
                raise ValueError(f"{name} must have at least one item and none twice, got {list(items)}")
            for item in items:
                if isinstance(item, int | float) and (not 0 <= item < math.inf or (item == 0 and name in positive)):
                    least = "greater than 0" if name in positive else "at least 0"
                    raise ValueError(f"{name} must be finite and {least}, got {item}")
        if bool(self.steps) == bool(self.epochs):
            raise ValueError(f"give one of steps and epochs, the other 0, got steps={self.steps}, epochs={self.epochs}")
        for name, levels in self.references.items():
            levels = [getattr(self, level) if isinstance(level, str) else level for level in levels]
            if lacking := [level for level in levels if level not in getattr(self, name)]:
                raise ValueError(
                    f"{name} must have {lacking[0]:g}, which other levels are compared with, got "
                    f"{list(getattr(self, name))}; add it"
                )
        backbones.weights_file(self.backbone, None if self.weights == "none" else self.weights)
        folds = protocols.find(self.protocol).folds
        if self.one_network and folds:
            alone = [name for name, protocol in protocols.PROTOCOLS.items() if not protocol.folds]
            raise ValueError(
                f"{self.notebook} measures one network per seed, and protocol {self.protocol!r} trains {folds}; choose "
                f"one of {', '.join(alone)}"
            )
        if self.search_trials:
            protocols.with_folds(self.protocol)

    def published(self, method: str, setting: str = "") -> Mapping:
        """What the paper says of a method's runs under these parameters: {name: methods.Setting}.

        A name is a field of the RunSpec, "loss.<option>" or "loss_lr.<parameter>". At the profile paper the loss takes
        its options and rates from here; the fields are decided for all methods alike, and only compared by `config`.
        """
        return {}

    def _dataset_recipe(self, dataset: str) -> dict[str, typing.Any]:
        """Parameters that the dataset decides, with the backbone and the dimension that the reader gave."""
        return {}

    def _protocol_recipe(self, dataset: str) -> dict[str, typing.Any]:
        """Parameters that the protocol decides: at the profile paper its published settings, else only its name."""
        if "protocol" not in self._names():
            return {}
        from experiments.training import protocols

        name = self.protocol or self.overrides.get(self.profile, {}).get("protocol", "conventional")
        settings = protocols.published_settings(name, dataset, self.backbone)
        if self.profile != "paper":
            return {"protocol": name, "search_trials": 0}
        known = {key: value for key, value in settings.items() if key in recipe_of("paper", dataset)}
        decided = {key: 0 if value is None else value for key, value in known.items()}
        protocol = protocols.find(name)
        return {"protocol": name, "seeds": protocol.repeats, "search_trials": protocol.trials} | decided

    def _differs_from_profile(self, resolved: typing.Self) -> dict[str, typing.Any]:
        """Explicit parameters that change something: they name a results file of their own.

        Dataset and protocol are compared with the profile's, the others with what the profile means for the two.
        """
        plain = type(self)(profile=self.profile)
        if self == plain:
            return {}
        choice = {name: getattr(self, name) for name in ("dataset", "protocol") if name in self._names()}
        alike = dataclasses.replace(plain, **choice)
        standard = plain._resolved()
        usual = standard if self == alike else alike._resolved()
        return {
            field.name: getattr(resolved, field.name)
            for field in dataclasses.fields(self)
            if getattr(resolved, field.name) != getattr(standard if field.name in choice else usual, field.name)
            and getattr(self, field.name) != field.default
        }

    @property
    def changed(self) -> dict[str, typing.Any]:
        """What the reader gave that the profile has not itself; nothing of parameters that are not resolved."""
        return getattr(self, "_explicit", {})

    @property
    def stem(self) -> str:
        """File stem of the results: the notebook's name, and what was changed against the profile."""
        return stem_of(self.notebook, self._explicit)

    @classmethod
    def _names(cls) -> list[str]:
        return [field.name for field in dataclasses.fields(cls)]

    def as_dict(self) -> dict[str, typing.Any]:
        return dataclasses.asdict(self)

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{name}</td><td>{value!r}</td></tr>" for name, value in self.as_dict().items())
        return f"<table><thead><tr><th>parameter</th><th>resolved value</th></tr></thead><tbody>{rows}</tbody></table>"

    def conditions(self) -> dict[str, typing.Any]:
        """What the search of a method belongs to beside the method: the data, the network, what of it is trained, the
        batch and the budget. What is searched, and what no number depends on, has no part."""
        left_out = ("lr", "head_lr", "threads", "eval_every", "eval_every_epochs", "compile")
        decided = {name: value for name, value in self.spec_options().items() if name not in left_out}
        decided |= {name: value or None for name, value in self.search_budget().items()}
        further = ("train_from", "samples_per_class", "warmup_epochs")
        return json.loads(json.dumps(decided | {name: getattr(self, name) for name in further}))

    def search_budget(self) -> dict[str, int]:
        """Steps and epochs of the search whose results the runs take: what the data set means for the paper, also for
        a notebook that has a budget of its own, but where the reader asks for another budget: then that."""
        mine = {name: getattr(self, name) for name in ("steps", "epochs")}
        if self.changed.keys() & mine:
            return mine
        recipe = recipe_of(self.profile, self.dataset) | self._dataset_recipe(self.dataset)
        return recipe.get("searched", {name: recipe[name] for name in mine})

    def search_name(self, method: str) -> str:
        """The file name of the search of a method under these conditions."""
        budget = {"dim": self.embedding_size, "batch": self.batch_size} | self.search_budget()
        where = [self.dataset, self.backbone, self.weights, self.train_from or "whole"]
        numbers = [f"{name}={value}" for name, value in budget.items() if value]
        return f"{_word(method)}--{','.join(map(_word, where))},{','.join(numbers)}.json"

    def searches(self) -> dict[str, dict[str, typing.Any]]:
        """The committed searches whose results the runs take, by method, see training/search.py: at the profile small,
        unless the notebook searches itself or images are the reader's own."""
        from experiments.training import search

        if self.profile != "small" or not self.takes_searches or self.search_trials or is_own(self.dataset):
            return {}
        committed = [record for _, record in search.complete(search.folder(self.profile))]
        mine = self.conditions()
        return {name: record for record in committed if record["conditions"] == mine for name in record["methods"]}

    def untuned(self) -> typing.Self:
        """The same parameters, whose runs take nothing that a search has found; of a copy with other values they do."""
        plain = copy.copy(self)
        object.__setattr__(plain, "searches", dict)
        return plain

    def spec_options(self) -> dict[str, typing.Any]:
        """The fields of a RunSpec that these parameters decide."""
        further = recipe_of(self.profile, self.dataset).get("fixed", {})
        if self.eval_every_epochs:
            further = further | {"eval_every": None, "eval_every_epochs": self.eval_every_epochs}
        return {
            "dataset": self.dataset,
            "backbone": self.backbone,
            "weights": None if self.weights == "none" else self.weights,
            "embedding_size": self.embedding_size,
            "image_size": self.image_size or None,
            "test_resize": self.test_resize or None,
            "original_images": self.original_images,
            "steps": self.steps or None,
            "epochs": self.epochs or None,
            "batch_size": self.batch_size,
            "lr": self.lr,
            "threads": self.threads or None,
            "precision": self.precision,
            "compile": self.torch_compile,
        } | further


def stem_of(notebook: str, changes: Mapping[str, typing.Any]) -> str:
    """A file's stem that names a notebook and its changed parameters: "10_pfml_retrieval--seeds=5,steps=600".

    Many changes would exceed the 255 bytes that file systems allow: then the end is a digest.
    """
    changed = ",".join(f"{name}={_word(value)}" for name, value in sorted(changes.items()))
    stem = f"{notebook}--{changed}" if changed else notebook
    if len(stem.encode()) <= 200:
        return stem
    return f"{stem.encode()[:180].decode(errors='ignore')}~{_digest(stem, 16)}"


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def of_cell(namespace: Mapping[str, typing.Any], parameters: Collection[str]) -> dict[str, typing.Any]:
    """What a notebook says of its parameters, by name, from the `globals()` of its kernel or script.

    A kernel holds more: what later cells left, and names that an older version of the parameters cell had. There the
    names count that this cell assigned when it ran last, with those of the cells between it and `from_cell`, one of
    which papermill injects. A script has no history of cells: all its names count.

    Names of neither `parameters` nor something close to one are left out, unless papermill injected them.
    """
    history = namespace.get("In") or []
    cells = [n for n, cell in enumerate(history) if "profile" in _assigned(cell) and not cell.startswith(INJECTED)]
    injected: set[str] = set()
    if cells:
        behind = itertools.takewhile(lambda cell: "from_cell" not in cell, history[cells[-1] + 1 :])
        said = [history[cells[-1]], *behind]
        names = set().union(*map(_assigned, said))
        injected = injected.union(*(_assigned(cell) for cell in said if cell.startswith(INJECTED)))
    else:
        plain = bool | int | float | str | list | tuple | dict | None
        names = {name for name, value in namespace.items() if isinstance(value, plain)}
    known = {*parameters, *injected}
    return {
        name: namespace[name]
        for name in sorted(names & namespace.keys())
        if name in known or difflib.get_close_matches(name, parameters, 1, CLOSE)
    }


def _assigned(source: str) -> set[str]:
    """The names that a cell assigns; none where it is no Python."""
    try:
        nodes = ast.walk(ast.parse(source))
    except SyntaxError:
        return set()
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _word(value: typing.Any) -> str:
    """A value as a part of a file name; of a path only the last component is legible, a digest stands for the rest."""
    if isinstance(value, str) and is_own(value):
        return f"{_word(PurePath(value.partition(':')[2]).name[:40])}-{_digest(value, 8)}"
    if isinstance(value, list | tuple):  # whose items may hold the sign that joins them
        text = "+".join(str(item).replace("+", "-plus-") for item in value)
    else:
        text = str(value)
    return "".join(c if c.isalnum() or c in "+.-_" else "_" for c in text)


def _checked(name: str, value: typing.Any, hint: typing.Any):
    """The value if it has the annotated type (an int may stand for a float); TypeError otherwise."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        origin = typing.get_origin(option) or option
        if origin is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, bool) and origin is not bool:
            continue
        if origin in (list, tuple) and isinstance(value, list | tuple | str | int | float):
            (item, *_) = typing.get_args(option)
            return tuple(_checked(f"{name}[{i}]", entry, item) for i, entry in enumerate(_items(value, item)))
        if isinstance(value, origin):
            return value
    wanted = " or ".join("None" if o is types.NoneType else getattr(o, "__name__", str(o)) for o in options)
    remedy = " (YAML reads 1e-5 as a string: write 1.0e-5)" if _number(value) is not value else ""
    parameter, of_list, _ = name.partition("[")
    if of_list:
        remedy += f"; papermill takes a list as -p {parameter} A,B or as -y '{parameter}: [A, B]'"
    raise TypeError(f"parameter {name} must be {wanted}, got {value!r} of type {type(value).__name__}{remedy}")


def _items(value: list | tuple | str | int | float, kind: type) -> list:
    """The items of a list parameter. papermill's -p knows no lists: there "PFML,ProxyAnchor" stands for two items, and
    a text or a number alone for one."""
    if isinstance(value, list | tuple):
        return list(value)
    if not isinstance(value, str):
        return [value]
    texts = [text.strip(" '\"") for text in value.strip("[]").split(",")] if value.strip("[]") else []
    return texts if kind is str else [_number(text) for text in texts]


def _number(value: typing.Any):
    """The number that a text stands for; anything else as it is."""
    if isinstance(value, str):
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(value)
    return value
