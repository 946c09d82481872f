"""What the papers share: what a method is, the baselines that several papers compare with, and how methods become runs.

The network, the data and the budget are equal for every method of a notebook. A baseline is stated here once, so that
notebooks of different papers ask for equal specs and a shared run is trained once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from dmlrepro.losses.recommended import BOUNDARY, PROXIES
from experiments.analysis.tables import START
from experiments.checks import refuse_unknown
from experiments.params import Params, merged, protocol_of, search_trials_of
from experiments.profiles import benchmark_of
from experiments.training import protocols
from experiments.training.search import NETWORK_LR, Range, Search, best_of, by_protocol, times
from experiments.training.spec import RunSpec


@dataclass(frozen=True)
class Setting:
    value: Any  # as published
    source: str  # the sentence or table it comes from


NOT_REPORTED = Setting(None, "the paper does not say")


@dataclass(frozen=True)
class Method:
    """One method: what its runs have beside what a notebook's parameters give to every method."""

    name: str  # as our tables and figures print it
    loss: str | None  # "<module>.<name>" under dmlrepro.losses; None: the network as it is
    options: dict[str, Any] = field(default_factory=dict)
    # "shuffled" for losses on proxies; "pairs" for losses that need several images of a class in a batch, which have
    # `samples_per_class` of them, 4 where that is 0; "parameter" for losses that work with either, which have
    # `samples_per_class` images of a class, or shuffled batches where that is 0
    batches: str = "shuffled"
    # {parameter of the loss, "*" for all others: its learning rate over the network's}
    lr_multipliers: Mapping[str, float] = field(default_factory=dict)
    param_lrs: dict[str, float] = field(default_factory=dict)  # the same, whatever the network's is
    # {option of the loss: the parameter of the notebook that gives it, where the notebook has it}
    from_parameters: dict[str, str] = field(default_factory=dict)
    # options of the loss for networks without pretrained weights, and for the one that is embedded
    from_scratch: Mapping[str, object] = field(default_factory=dict)
    # {option of the loss: {backbone: value}}, for an option that is otherwise absent or 0
    by_backbone: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)  # further ones of the RunSpec, such as clipping
    # what a protocol's search varies, see `search.applied`; None: the method cannot be searched
    search_space: Mapping[str, Range] | None = None
    # those of them, three at most, that the search of every method varies beside the network's learning rate; empty:
    # all but `loss_lr`. In that search a rate that is stated over the network's follows it
    searched_params: tuple[str, ...] = ()
    searched_as: str = ""  # the method whose search a variant takes; empty: its own
    # {option of the loss: Setting} of a method of which the paper of the notebook says nothing. It documents; what a
    # run takes is said by the other attributes. Of a paper's own methods see `Study.published`
    published: Mapping[str, Setting] = field(default_factory=dict)
    color: str = ""  # empty: figures take one of the palette by the method's name
    offered: bool = True  # whether notebook 01 tries it: not without labels, and not what needs more steps than a head


# What a search varies: options of the loss, and `loss_lr`, the highest learning rate of its parameters; the others keep
# their ratio to it. The papers give the range of `loss_lr`; each other range encloses the optima of MLRC and CCP.
LOSS_LR = {"loss_lr": Range(1e-6, 1.0, log=True)}
_TEMPERATURE = Range(0.01, 1, log=True)
_ANGULAR = {"margin": Range(0, 1), "scale": Range(10, 300)} | LOSS_LR
_SPACES: dict[str, dict[str, Range]] = {
    "ProxyAnchor": {"margin": Range(0, 0.4), "alpha": Range(4, 64)} | LOSS_LR,
    "ProxyNCA++": {"temperature": _TEMPERATURE} | LOSS_LR,
    "SoftTriple": {"la": Range(1, 200), "gamma": _TEMPERATURE, "tau": Range(0, 1), "margin": Range(0, 1)} | LOSS_LR,
    "NormSoftmax": {"temperature": _TEMPERATURE} | LOSS_LR,
    "ArcFace": _ANGULAR,
    "CosFace": _ANGULAR,
    "MultiSimilarity": {"alpha": Range(0.01, 50), "beta": Range(1, 200), "base": Range(0, 1), "epsilon": Range(0, 1)},
    "Contrastive": {"pos_margin": Range(-0.2, 1), "neg_margin": Range(0, 1)},
    "Triplet": {"margin": Range(0, 1)},
    "Margin": {"margin": Range(0, 1), "beta": Range(0, 2)} | LOSS_LR,
}
_SEARCHED = {"SoftTriple": ("la", "gamma", "margin"), "MultiSimilarity": ("alpha", "beta", "base")}


def _all_from(source: str, **values: object) -> dict[str, Setting]:
    return {name: Setting(value, source) for name, value in values.items()}


_PUBLISHED: dict[str, dict[str, Setting]] = {
    "ProxyAnchor": _all_from("Kim et al., CVPR 2020", margin=0.1, alpha=32.0),
    "ProxyNCA++": _all_from("Teh et al., ECCV 2020", temperature=1 / 9),
    "SoftTriple": _all_from("Qian et al., ICCV 2019", la=20.0, gamma=0.1, tau=0.2, margin=0.01, centers_per_class=10),
    "NormSoftmax": _all_from("Zhai and Wu, BMVC 2019", temperature=0.05),
    "ArcFace": _all_from("Deng et al., CVPR 2019", margin=0.5, scale=64.0),
    "CosFace": _all_from("Wang et al., CVPR 2018", margin=0.35, scale=64.0),
    "MultiSimilarity": {
        **_all_from("Wang et al., CVPR 2019", alpha=2.0, epsilon=0.1),
        "beta": Setting(50.0, "Wang et al., CVPR 2019; 40 in its released code"),
        "base": Setting(0.5, "the released code; 1 in the paper"),
    },
    "Contrastive": {"pos_margin": NOT_REPORTED, "neg_margin": NOT_REPORTED},
    "Triplet": _all_from("Schroff et al., CVPR 2015", margin=0.2),
    "Margin": _all_from("Wu et al., ICCV 2017, and the code of Roth et al.", margin=0.2, beta=1.2),
}


BASELINES: dict[str, Method] = {
    "untrained": Method("untrained", None, color="#8A8A8A"),
    START: Method(START, None, color="#BDBDBD", offered=False),
} | {
    name: Method(
        name,
        f"baselines.{loss}",
        batches=batches,
        lr_multipliers=rates,
        search_space=_SPACES[name],
        searched_params=_SEARCHED.get(name, ()),
        published=_PUBLISHED[name],
        color=color,
    )
    for name, loss, color, batches, rates in (
        ("ProxyAnchor", "proxy_anchor", "#0072B2", "shuffled", {"*": PROXIES}),
        ("ProxyNCA++", "proxy_nca_pp", "#56B4E9", "shuffled", {"*": PROXIES}),
        ("SoftTriple", "soft_triple", "#009E73", "shuffled", {"*": PROXIES}),
        ("NormSoftmax", "normalized_softmax", "#4B4B4B", "shuffled", {"*": PROXIES}),
        ("ArcFace", "arcface", "#661100", "shuffled", {"*": PROXIES}),
        ("CosFace", "cosface", "#6699CC", "shuffled", {"*": PROXIES}),
        ("MultiSimilarity", "multi_similarity", "#CC79A7", "pairs", {}),
        ("Contrastive", "contrastive", "#7A5C1E", "pairs", {}),
        ("Triplet", "triplet", "#C9B800", "pairs", {}),
        ("Margin", "margin", "#DDCC77", "pairs", {"*": BOUNDARY}),
    )
}

# The recipe of every method's network at the profile paper, where a benchmark differs from the profile: Table 8 of
# PFML, which is that of ProxyAnchor's code. A protocol's published settings replace it. In-Shop, which the table does
# not have, is the most like SOP.
_TABLE_8 = "PFML, Table 8 (supp)"
NETWORK_RECIPES: dict[str, dict[str, Setting]] = {
    "cub": _all_from(_TABLE_8, optimizer="adam", weight_decay=5e-4),
    "cars": _all_from(_TABLE_8, optimizer="adam", weight_decay=1e-4),
    "sop": _all_from(_TABLE_8, optimizer="adam", weight_decay=5e-4, freeze_batchnorm=False),
}
NETWORK_RECIPES["inshop"] = NETWORK_RECIPES["sop"]


def pick(records: Mapping[str, Method], names: Iterable[str]) -> list[Method]:
    """Methods by name; ValueError lists what exists."""
    names = list(names)
    refuse_unknown("unknown method", names, records)
    return [records[name] for name in names]


def spec_of(
    method: Method,
    params: Params,
    seed: int = 0,
    *,
    setting: str = "",
    loss_options: Mapping[str, Any] | None = None,
    **changes: Any,
) -> RunSpec:
    """The run of one method under a notebook's parameters; setting: what the tables call this variant of the method;
    loss_options and changes, fields of the RunSpec, win over the method's and the parameters'. ValueError: an option
    that depends on the backbone is not known for this one."""
    layers = spec_layers(method, params, changes.get("backbone"))
    options = merged((who, fields.get("loss_options", {})) for who, fields in layers) | dict(loss_options or {})
    fields = merged(layers) | {"loss_options": options} | changes
    return RunSpec(**fields, seed=seed, method=method.name, setting=setting)


# see `params.merged`; `config` prints who decided
Layers = list[tuple[str, dict[str, Any]]]
PARAMETER, METHOD = "parameter", "method"  # a layer of the notebook's parameters, of the method's record


def spec_layers(method: Method, params: Params, backbone: str | None = None) -> Layers:
    """Who decides which fields of a method's runs; of "loss_options" each layer has some, and a later one wins.

    ValueError where an option that depends on the backbone, None: the parameters', is not known for it.
    """
    layers: Layers = [(PARAMETER, params.spec_options())]
    if method.loss is None:
        return [*layers, (METHOD, {"loss": None, "steps": None, "epochs": None, "embedding_size": None})]
    if params.weights == "imagenet":
        # a pretrained network starts with a frozen trunk and keeps its BatchNorm, as in the code of ProxyAnchor
        layers.append(("pretrained network", {"freeze_batchnorm": True}))
        layers.append((PARAMETER, {"warmup_epochs": params.warmup_epochs}))
    if params.train_from and params.weights != "none":
        # a tail sees the centre crop and its mirror image; images that are not resized may have no mirror image
        views = {"cached_views": 2} if params.train_from != "head" and params.image_size else {}
        layers.append((PARAMETER, {"train_from": params.train_from} | views))
    said: Mapping[str, Setting] = {}
    if params.profile == "paper":
        said = {n: setting for n, setting in params.published(method.name).items() if setting != NOT_REPORTED}
        recipe = NETWORK_RECIPES[benchmark_of(params.dataset)]
        layers += [(f"paper: {setting.source}", {name: setting.value}) for name, setting in recipe.items()]
    wanted = params.samples_per_class
    per_class = {"shuffled": None, "pairs": wanted or 4, "parameter": wanted or None}[method.batches]
    layers.append((PARAMETER if wanted and method.batches != "shuffled" else METHOD, {"samples_per_class": per_class}))
    rates = {name: factor * params.lr for name, factor in method.lr_multipliers.items()} | method.param_lrs
    for name, setting in said.items():
        if name.startswith("loss_lr."):
            rates[name.removeprefix("loss_lr.")] = setting.value
    own = {"loss": method.loss, "loss_lr": rates, "loss_options": dict(method.options)}
    layers.append((METHOD, own | method.fields))
    for name, setting in said.items():
        if name.startswith("loss."):
            layers.append((f"paper: {setting.source}", {"loss_options": {name.removeprefix("loss."): setting.value}}))
    if params.weights in ("none", "symbols"):
        layers.append(("small network", {"loss_options": dict(method.from_scratch)}))
    given = {option: name for option, name in method.from_parameters.items() if hasattr(params, name)}
    layers.append((PARAMETER, {"loss_options": {option: getattr(params, name) for option, name in given.items()}}))
    search = params.searches().get(method.name)
    if search and search["begun"]["spec"].get("loss") == method.loss:  # but for what the reader gives
        given |= {"lr": "lr", "epochs": "epochs"}
        found = {name: v for name, v in search["found"]["options"].items() if given.get(name) not in params.changed}
        lr, epochs = found.pop("lr", None), found.pop("epochs", None)
        decided: dict[str, Any] = {"loss_options": found}
        if lr:
            factor, head = lr / params.lr, merged(layers).get("head_lr")
            faster = {name: times(rates[name], factor) for name in method.lr_multipliers}
            rate = {"lr": lr, "head_lr": head and times(head, factor), "loss_lr": faster and rates | faster}
            decided |= {name: value for name, value in (rate | {"epochs": epochs}).items() if value}
        where, runs = search["conditions"], sum(len(trial["scores"]) for trial in search["trials"])
        layers.append((f"search, {runs} runs, {where['dataset']}, {where['train_from'] or 'whole network'}", decided))
    options = merged((who, fields.get("loss_options", {})) for who, fields in layers)
    backbone = backbone or params.backbone
    for option, known in method.by_backbone.items():
        if not options.get(option):
            if backbone not in known:
                raise ValueError(f"{option} is known for {', '.join(known)} and not for {backbone}; give one")
            layers.append((f"backbone {backbone}", {"loss_options": {option: known[backbone]}}))
    return layers


def ranges_of(method: Method) -> Mapping[str, Range]:
    """What a protocol's search of a method varies; ValueError where its record does not say."""
    if method.search_space is None:
        raise ValueError(f"no search ranges for {method.name}; its record in the paper's methods.py has to state them")
    return method.search_space


def searched_ranges(method: Method) -> dict[str, Range]:
    """What the search of every method varies."""
    ranges = ranges_of(method)
    return NETWORK_LR | {n: ranges[n] for n in method.searched_params or [n for n in ranges if n != "loss_lr"]}


def runs_of(methods: Iterable[Method], params: Params, protocol: str | None = None, **how: Any) -> list[RunSpec]:
    """All runs of some methods at one setting; protocol as in `expand_seeds`, `how` as in `spec_of`."""
    return expand_seeds([spec_of(method, params, **how) for method in methods], params, protocol)


def expand_seeds(specs: Iterable[RunSpec], params: Params, protocol: str | None = None) -> list[RunSpec]:
    """One spec per method in, all its seeds and folds out; beside the features of an untrained network stands the
    network that the others begin with, START. protocol: None is that of the parameters. ValueError as in `expand`."""
    protocol, started = protocol or protocol_of(params), []
    for spec in specs:
        started.append(spec)
        if spec.method == "untrained":
            head = {"method": START, "embedding_size": params.embedding_size}
            started.append(spec.replace(**head, train_from="head" if spec.weights else None))
    return [
        run
        for spec in started
        for seed in range(params.seeds)
        for run in protocols.expand(spec.replace(seed=seed), protocol, **expansion(params))
    ]


def expansion(params: Params) -> dict[str, Any]:
    """How `protocols.expand` treats a spec: at the profile paper a protocol's published settings replace all fields but
    those that the parameters decide."""
    return {"published": params.profile == "paper", "keep": params.spec_options()}


def _searches(specs: Sequence[RunSpec], records: Mapping[str, Method], params: Params) -> dict[str, Search]:
    """The search of every method that trains; none with 0 trials."""
    trials = search_trials_of(params)
    trained = [spec for spec in specs if spec.loss is not None] if trials else []
    # an error in the last method would cost the searches before it
    ranges = {spec.method: ranges_of(records[spec.method]) for spec in trained}
    how = expansion(params)
    return {s.method: by_protocol(s, ranges[s.method], protocol_of(params), trials, **how) for s in trained}


def search_each(specs: Sequence[RunSpec], records: Mapping[str, Method], params: Params) -> list[RunSpec]:
    """Each spec with the hyperparameters that a search of `params.search_trials` trials finds; as it is with 0 trials
    and for an untrained network. ValueError, before the first trial, where a method has no ranges."""
    found = _searches(specs, records, params)
    return [best_of(spec, found[spec.method]) if spec.method in found else spec for spec in specs]


def found_by_search(specs: Sequence[RunSpec], records: Mapping[str, Method], params: Params):
    """What searches found for these methods, a row each, see `summary`; None without a search."""
    found = params.searches() | _searches(specs, records, params)
    rows = [{"method": spec.method} | summary(found[spec.method]) for spec in specs if spec.method in found]
    return pd.DataFrame(rows).set_index("method") if rows else None


def summary(search: Search) -> dict[str, Any]:
    """What a search found: its hyperparameters, and validation MAP@R in percent of trial 0, the default, of the median,
    the best and the chosen trial, on the fold that scored all; the chosen one has the best mean over all folds."""
    outcome, trials = search["found"], search["trials"]
    scores = {name: 100 * outcome[name] for name in ("default", "median", "best")}
    scores |= {"chosen": 100 * trials[outcome["trial"]]["scores"][0], "chosen, all folds": 100 * outcome["score"]}
    return {"trials": len(trials)} | scores | outcome["options"]
