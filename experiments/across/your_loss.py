"""Notebook 03: a loss of the reader's own beside the losses of notebook 10: same network, images, steps, seeds, and at
profile small the same search."""

import functools
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import pandas as pd
import torch
from pydantic import model_validator

from dmlrepro.losses.recommended import PROXIES
from experiments.analysis import claims, comparing, judging, results
from experiments.figures.style import Names
from experiments.files import cache_root
from experiments.methods import Method, expand_seeds, searched_ranges, spec_of
from experiments.params import MAY_BE_EMPTY, Params
from experiments.pfml.methods import METHODS, NAMES
from experiments.pfml.retrieval import Retrieval
from experiments.studies import histories_apart, with_histories
from experiments.study import Study
from experiments.training import keys, own_loss, records, runs, search
from experiments.training.spec import RunSpec

EXAMPLE = "examples.my_loss:MyLoss"
METRIC = "MAP@R"  # what decides, by the smallest difference that counts in the claims
MOST_SEARCHED = 3  # options beside the network's learning rate, as of every method


class YourLossParams(Params):
    """The parameters of notebook 03.

    loss: package.module:NAME of what is installed or lies below the working directory; a class, or a function that
        makes one, of modules called as loss(embeddings, labels).
    search: what of it the search varies beside the network's learning rate, "margin=0:1" or "scale=1:100:log"; at the
        profile small, at which every method is searched. `loss_lr` is the learning rate of its parameters.
    batches: "shuffled", or "pairs" of several images of a class; empty: shuffled for a loss that has parameters, such
        as proxies, pairs for one that has none.
    """

    loss: str = EXAMPLE
    search: Annotated[tuple[str, ...], MAY_BE_EMPTY] = ()
    batches: str = ""

    @property
    def own(self) -> bool:
        """Whether what comes out is the reader's, and lies in results/own: all but the example at quick."""
        return self.loss != EXAMPLE or self.profile != "quick"

    @model_validator(mode="after")
    def _loads(self) -> typing.Self:
        if self.batches not in ("", "shuffled", "pairs"):
            raise ValueError(f"batches must be 'shuffled', 'pairs' or empty, got {self.batches!r}")
        method_of(self)
        return self


def method_of(params: YourLossParams) -> Method:
    """The loss as a method of this repository; its parameters learn as fast as the proxies of all others. ValueError if
    it cannot be built, `own_loss.refuse_unsound` refuses it, or an option to be searched is not one of its numbers."""
    code, ranges = own_loss.code_of(params.loss), ranges_of(params.search)
    name, build = params.loss.rpartition(":")[2], functools.partial(own_loss.OwnLoss, code)
    defaults = {option: argument.default for option, argument in own_loss.asked_by(own_loss.builder_of(code)).items()}
    numbers = {option: value for option, value in defaults.items() if type(value) in (int, float)}
    if unknown := [option for option in ranges if option != "loss_lr" and option not in numbers]:
        raise ValueError(f"search: {name} has no number {unknown[0]!r}; it has {', '.join(numbers) or 'none'}")
    try:
        with torch.random.fork_rng(devices=[]):
            learns = any(True for _ in build(2, params.embedding_size).parameters())
        own_loss.refuse_unsound(build)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{params.loss} cannot be trained with: {error}") from error
    if "loss_lr" in ranges and not learns:
        raise ValueError(f"search: {name} has no parameters, and so no loss_lr")
    return Method(
        name=name if name not in METHODS else f"{name} (yours)",
        loss=runs.OWN_LOSS,
        options={"code": code, **{option: numbers[option] for option in ranges if option in numbers}},
        batches=params.batches or ("shuffled" if learns else "pairs"),
        lr_multipliers={"*": PROXIES} if learns else {},
        search_space=ranges,
        searched_params=tuple(ranges),
        color="#000000",
    )


def ranges_of(texts: Iterable[str]) -> dict[str, search.Range]:
    """ "margin=0:1" and the like as ranges by name; ValueError names one that is none, and more than any method has."""
    ranges = {}
    for text in texts:
        matched = re.fullmatch(r"(\w+)=([^:]+):([^:]+)(:log)?", text.replace(" ", ""))
        try:
            name, low, high, log = matched.groups() if matched else ("", "", "", "")
            ranges[name] = search.Range(float(low), float(high), bool(log))
        except ValueError:
            raise ValueError(f"search must be NAME=LOW:HIGH or NAME=LOW:HIGH:log, got {text!r}") from None
        if not ranges[name].low < ranges[name].high or (log and ranges[name].low <= 0):
            raise ValueError(f"search: {text!r} is no range; LOW must lie below HIGH, and above 0 for log")
    if len(ranges) > MOST_SEARCHED:
        raise ValueError(f"search varies {MOST_SEARCHED} options at most, as of every method, got {', '.join(ranges)}")
    return ranges


def names(params: YourLossParams) -> Names:
    """The colours of notebook 10, and black for the loss."""
    return Names({**NAMES.colors, method_of(params).name: "#000000"}, NAMES.paper)


def your_loss(params: YourLossParams, found: search.Search | None = None) -> list[RunSpec]:
    """The methods of notebook 10 and the loss, with every seed; found: what `searched` returns."""
    spec = spec_of(method_of(params), params)
    own = expand_seeds([search.best_of(spec, found) if found else spec], params)
    given = {name: getattr(params, name) for name in Params.defaults() if params.origins.get(name) == "reader"}
    same = {"profile": params.profile, "seeds": params.seeds, "small_dim": 0, "mlrc_steps": 0}  # else searched
    rivals = Retrieval.specs(Retrieval.configured(given | same))
    return [run for run in rivals if not run.setting] + with_histories(own)


def searched(params: YourLossParams) -> search.Search | None:
    """The search of the loss, equal to every method's: made, gone on with, or found complete in the cache; None at the
    profiles that search no method. ValueError where the reader gives the learning rate, which every search varies."""
    if params.profile != "small":
        return None
    if params.origins.get("lr") == "reader":
        raise ValueError(f"lr is searched for every loss at profile small, got {params.lr}; leave it out")
    method = method_of(params)
    budget: dict[str, Any] = {name: value or None for name, value in params.search_budget().items()}
    spec = spec_of(method, params, **budget)
    identity = records.digest([keys.identity_of(spec)["what"], params.search])
    path = cache_root() / "searches" / f"own-{identity[:24]}.json"
    about = {"method": method.name, "methods": [method.name], "conditions": params.conditions()}
    return search.search(spec, searched_ranges(method), path, about=about)


def comparisons(
    table: pd.DataFrame,
    params: YourLossParams,
    trials: Mapping[str, int],
    found: search.Search | None = None,
    finished: Iterable[runs.RunResult] = (),
) -> pd.DataFrame:
    """A row per rival, the largest gain first: the paired difference of the loss in points of METRIC, its interval, p
    after Holm over all rivals and the judge's verdict, none where one of the `finished` runs of the table is outdated.
    trials: by rival, of the search that chose its settings; found: what `searched` returned."""
    rows, mine = table.round({"value": 6}), method_of(params).name  # in the digits of tables equal runs differ by 0
    trials = {**trials, mine: len(found["trials"]) if found else 0}
    others = sorted({*rows["method"]} - {*comparing.UNTRAINED, mine})
    parts, why = {rival: (claims.higher(mine, rival, metric=METRIC),) for rival in others}, "as in the claims"
    tests = {name: claims.ClaimTest(name, params.notebook, of, why, seeds=claims.PLANNED) for name, of in parts.items()}
    judged = judging.judge(rows, tests, trials=trials).verdicts.set_index("claim_id").rename_axis("rival")
    words = {judging.Verdict.SUPPORTED: "better", judging.Verdict.CONTRADICTED: "worse"}
    judged["verdict"] = "outdated runs" if any(run.stale for run in finished) else judged["verdict"].replace(words)
    shown = judged.sort_values("effect", ascending=False, kind="stable").rename(columns={"effect": "difference"})
    return shown[["difference", "low", "high", "seeds", "p_holm", "verdict", "reason"]]


YourLoss = Study(
    "03_your_loss",
    YourLossParams,
    your_loss,
    lambda finished, params: histories_apart(results.tidy(finished, params)),
    own_search=True,
)
