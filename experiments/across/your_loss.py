"""Notebook 03: a loss of the reader's own beside the losses of notebook 10, under equal conditions.

Its network, images, steps, seeds and search are those that every method of notebook 10 has, so that what the record has
of these is compared and not trained again.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import torch

from dmlrepro.losses.recommended import PROXIES
from experiments.analysis import results, saving, stored, summaries, tables
from experiments.analysis.claims import PLANNED, START, ClaimTest, higher
from experiments.analysis.comparing import UNTRAINED
from experiments.analysis.judging import Verdict, judge
from experiments.analysis.statistics import MIN_SEEDS, t_interval
from experiments.analysis.stored import Numbers
from experiments.figures.style import Names
from experiments.files import repository_root
from experiments.methods import BASELINES, Method, every_seed, searched_ranges, spec_of
from experiments.params import Params, stem_of
from experiments.pfml.methods import METHODS, NAMES
from experiments.pfml.retrieval import PfmlRetrievalParams, retrieval
from experiments.steps import LossStep
from experiments.studies import histories_apart, with_histories
from experiments.study import Study
from experiments.timing import in_turn
from experiments.training import batches, own_loss, records, runs
from experiments.training.builders import build_loss
from experiments.training.runs import RunResult
from experiments.training.search import Range, Search, best_of
from experiments.training.spec import RunSpec

EXAMPLE = "examples/my_loss.py:MyLoss"
RIVALS = PfmlRetrievalParams.notebook  # whose methods the loss is compared with
METRIC, COUNTS = "MAP@R", 0.5  # what decides, and the smallest difference in points that counts, as in the claims
MOST_SEARCHED = 3  # options beside the network's learning rate, as of every method
_RANGE = re.compile(r"(\w+)=([^:]+):([^:]+)(:log)?")
WORDS = {Verdict.SUPPORTED: "better", Verdict.CONTRADICTED: "worse"}  # the judge's, for people


@dataclass(frozen=True)
class YourLossParams(Params):
    """The parameters of notebook 03.

    loss: FILE.py:NAME, relative to the repository or to the working directory, or package.module:NAME; a class, or a
        function that makes one, of modules called as loss(embeddings, labels).
    search: what of it the search varies beside the network's learning rate, "margin=0:1" or "scale=1:100:log"; at the
        profile small, at which every method is searched. `loss_lr` is the learning rate of its parameters.
    batches: "shuffled", or "pairs" of several images of a class; empty: shuffled for a loss that has parameters, such
        as proxies, pairs for one that has none.
    """

    notebook = "03_your_loss"
    paper = "together"
    may_be_empty: ClassVar = ("search",)

    loss: str = EXAMPLE
    search: tuple[str, ...] = ()
    batches: str = ""

    @property
    def own(self) -> bool:
        """Whether what comes out is the reader's, and lies in results/own: all but the example at quick."""
        return self.loss != EXAMPLE or self.profile != "quick"

    @property
    def stem(self) -> str:
        """With the digest of the loss's bytes: another loss has other files."""
        if not self.own:
            return super().stem
        code = code_of(self.loss)
        changes = {name: value for name, value in self._explicit.items() if name != "loss"}
        return stem_of(f"{code['name']}-{own_loss.digest_of(code)[:8]}", changes)

    def searches(self) -> dict[str, Search]:
        """None: the search of a loss of one's own is no committed one, see `your_loss`."""
        return {}

    def _refuse_nonsense(self) -> None:
        super()._refuse_nonsense()
        if self.batches not in ("", "shuffled", "pairs"):
            raise ValueError(f"batches must be 'shuffled', 'pairs' or empty, got {self.batches!r}")
        method_of(self)


# --- the loss as a method ---------------------------------------------------------------------------------------------


def code_of(reference: str) -> dict[str, str]:
    """`own_loss.code_of`, of a file relative to the repository or to the working directory."""
    where, colon, name = reference.rpartition(":")
    here = repository_root() / where
    return own_loss.code_of(f"{here}{colon}{name}" if where.endswith(".py") and here.is_file() else reference)


def source(params: YourLossParams) -> str:
    """The text of the loss's file; of a loss of a package what stands for it."""
    code = code_of(params.loss)
    return code.get("text") or f"{params.loss}, sha256 {code['sha256']}"


def method_of(params: YourLossParams) -> Method:
    """The loss as a method of this repository; its parameters learn as fast as the proxies of all others.

    Raises:
        ValueError: it cannot be loaded or built, or an option that is to be searched is not one of its numbers.
    """
    code = code_of(params.loss)
    asked = own_loss.asked_by(own_loss.builder_of(code))
    ranges = ranges_of(params.search)
    numbers = {name: option.default for name, option in asked.items() if _is_number(option.default)}
    if unknown := [name for name in ranges if name != "loss_lr" and name not in asked]:
        raise ValueError(f"search: {code['name']} has no option {unknown[0]!r}; it has {', '.join(numbers) or 'none'}")
    try:
        with torch.random.fork_rng(devices=[]):
            learns = any(True for _ in own_loss.OwnLoss(code, 2, params.embedding_size).parameters())
    except (ValueError, TypeError) as error:
        raise ValueError(f"loss {params.loss} cannot be built from its defaults: {error}") from error
    if "loss_lr" in ranges and not learns:
        raise ValueError(f"search: {code['name']} has no parameters, and so no loss_lr")
    return Method(
        name=code["name"] if code["name"] not in METHODS else f"{code['name']} (yours)",
        loss="own.OwnLoss",
        options={"code": code, **{name: numbers[name] for name in ranges if name in numbers}},
        batches=params.batches or ("shuffled" if learns else "pairs"),
        faster={"*": PROXIES} if learns else {},
        ranges=ranges,
        decisive=tuple(ranges),
        color="#000000",
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def ranges_of(search: Iterable[str]) -> dict[str, Range]:
    """ "margin=0:1" and the like as ranges by name; ValueError names one that is none, and more than any method has."""
    ranges = {}
    for text in search:
        matched = _RANGE.fullmatch(text.replace(" ", ""))
        try:
            name, low, high, log = matched.groups() if matched else ("", "", "", "")
            ranges[name] = Range(float(low), float(high), bool(log))
        except ValueError:
            raise ValueError(f"search must be NAME=LOW:HIGH or NAME=LOW:HIGH:log, got {text!r}") from None
        if not ranges[name].low < ranges[name].high or (log and ranges[name].low <= 0):
            raise ValueError(f"search: {text!r} is no range; LOW must lie below HIGH, and above 0 for log")
    if len(ranges) > MOST_SEARCHED:
        raise ValueError(f"search varies {MOST_SEARCHED} options at most, as of every method, got {', '.join(ranges)}")
    return ranges


def names(params: YourLossParams) -> Names:
    """The colours of notebook 10, and black for the loss."""
    return Names({**NAMES.colors, method_of(params).name: "#000000"}, NAMES.labels)


# --- its runs ---------------------------------------------------------------------------------------------------------


def your_loss(params: YourLossParams, search: Search | None = None) -> list[RunSpec]:
    """The network as it is and as training begins, and the loss, with every seed; search: that of `searched`."""
    spec = spec_of(method_of(params), params)
    specs = [spec_of(BASELINES["untrained"], params), best_of(spec, search) if search else spec]
    return with_histories(every_seed(specs, params))


def searched(params: YourLossParams) -> dict[str, Any] | None:
    """The arguments of `search.search` for the loss, those of every method's; None where no method is searched.

    ValueError where the reader gives the network's learning rate, which every search varies.
    """
    if params.profile != "small":
        return None
    if params.origins.get("lr") == "reader":
        raise ValueError(f"lr is searched for every loss at profile small, got {params.lr}; leave it out")
    method = method_of(params)
    budget: dict[str, Any] = {name: value or None for name, value in params.search_budget().items()}
    spec = spec_of(method, params, fold=None, **budget)
    about = {"method": method.name, "methods": [method.name], "conditions": params.conditions()}
    return {"spec": spec, "ranges": searched_ranges(method), "about": about}


def your_loss_table(finished: Iterable[RunResult], params: YourLossParams) -> pd.DataFrame:
    """The rows of the runs; see `studies.histories_apart`."""
    return histories_apart(results.tidy(finished, params))


# --- the rivals -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rivals:
    """What is on record of the methods of notebook 10 under the same conditions.

    table: their rows. runs: their runs, by which classes can be compared; none at quick, which keeps no record. trials:
    by method. missing: sentences on what is not there. older: whether other code than the present one trained them.
    """

    params: PfmlRetrievalParams
    table: pd.DataFrame
    runs: tuple[RunResult, ...] = ()
    trials: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    older: bool = False

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(self.table["method"]))


def rivals(params: YourLossParams, root: Path | None = None) -> Rivals:
    """At quick the table of notebook 10 in results/ (or `root`), else its runs on record; nothing is trained."""
    shared = {parameter.name: getattr(params, parameter.name) for parameter in fields(Params)}
    given = {name: value for name, value in shared.items() if params.origins.get(name) == "reader"}  # else searched
    theirs = PfmlRetrievalParams.from_values(given | {"profile": params.profile, "small_dim": 0, "mlrc_steps": 0})
    wanted = [name for name in theirs.methods if name not in UNTRAINED]
    if params.profile == "quick":
        table, their_runs, older = _of_table(shared, root), (), False
    else:
        table, their_runs, older = _of_record(theirs)
    table = table[table["method"].isin(wanted) & (table["seed"] < params.seeds)]
    seeds = table[table["setting"] == ""].groupby("method")["seed"].nunique()
    short = [f"{name} {seeds.get(name, 0)}" for name in wanted if seeds.get(name, 0) < params.seeds]
    missing = (
        [f"Of {params.seeds} seeds are on record: {', '.join(short)}; train notebook 10 for the others."]
        if short
        else []
    )
    trials = {name: len(search["trials"]) for name, search in theirs.searches().items()}
    if params.profile == "small" and (untuned := [name for name in wanted if name not in trials]):
        missing.append(f"No search is on record of {', '.join(untuned)}: no verdict against them.")
    return Rivals(theirs, table, their_runs, trials, tuple(missing), older)


def _of_table(shared: Mapping[str, Any], root: Path | None) -> pd.DataFrame:
    """The rows of the table that was made with the same parameters, at quick."""
    asked = {name: value for name, value in shared.items() if name not in ("seeds", "threads", "eval_every_epochs")}
    for saved in stored.stored(RIVALS, root):
        if all(saved.parameters.get(name) == value for name, value in asked.items()):
            rows = saved.table[saved.table["setting"].isin(["", tables.CURVE])]
            return rows[rows["protocol"] == "conventional"]
    return results.frame([_NOTHING]).iloc[:0]


_NOTHING = dict.fromkeys(("paper", "experiment", "profile", "dataset", "method", "metric"), "-") | {"value": 0.0}


def _of_record(theirs: PfmlRetrievalParams) -> tuple[pd.DataFrame, tuple[RunResult, ...], bool]:
    """Their rows and runs that are on record, and whether one is of older code."""
    specs = [spec for spec in retrieval(theirs) if spec.loss and not spec.setting]
    file = records.file_of(theirs.profile, RIVALS)
    there = [spec for spec, recorded in zip(specs, runs.on_record(specs, file)) if recorded] if file else []
    if not there:
        return results.frame([_NOTHING]).iloc[:0], (), False
    finished = tuple(runs.run_all(there, record=file))
    return histories_apart(results.tidy(finished, theirs)), finished, any(run.stale for run in finished)


def joined(table: pd.DataFrame, others: Rivals) -> pd.DataFrame:
    """The rows of the loss and of its rivals, as if of one notebook, the highest METRIC first; all in the digits of
    tables, so that equal runs differ by 0."""
    labels = table[["paper", "experiment"]].iloc[0].to_dict()
    rows = pd.concat([table, others.table.assign(**labels)], ignore_index=True) if len(others.table) else table
    rows = saving.as_saved(rows)
    decisive = rows[(rows["metric"] == METRIC) & (rows["selection"] == "last")]
    means = decisive.groupby("method")["value"].mean()
    return rows.assign(place=-rows["method"].map(means)).sort_values("place", kind="stable").drop(columns="place")


def standing(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per method of `joined`: means with intervals, the best METRIC first."""
    main = rows[rows["setting"] == ""]
    return summaries.pivot(main, ["R@1", "RP", METRIC]).droplevel(["protocol", "setting"])


def premise(rows: pd.DataFrame, params: YourLossParams) -> str:
    """Whether the loss has learned, which every verdict rests on: its gain over the network that it began with lies
    above zero with its interval, or in every one of a few seeds."""
    mine, numbers = method_of(params).name, Numbers(rows)
    gain = numbers.effects(mine, START, METRIC)
    low = t_interval(gain)[0] if len(gain) >= MIN_SEEDS else gain.min()
    has = "has learned" if low > 0 else "has NOT been shown to learn anything"
    return f"{mine} {has}: {numbers.against(mine, START, METRIC)} of the network that it began with."


# --- comparisons ------------------------------------------------------------------------------------------------------


def comparisons(rows: pd.DataFrame, params: YourLossParams, others: Rivals, trials: int = 0) -> pd.DataFrame:
    """A row per rival: the paired difference of the loss in points of METRIC, its interval and the judge's verdict,
    which is after Holm over all rivals, see `judging.judge`; where the loss gains most first.

    trials: of the loss's own search.
    """
    mine = method_of(params).name
    tests = {rival: _test(mine, rival) for rival in others.methods}
    counts = dict(others.trials) | {mine: trials}
    judged = judge(rows, tests, trials=counts).verdicts.set_index("claim_id")
    numbers, compared = Numbers(rows), []
    for rival, line in judged.iterrows():
        few = bool(line["values"])
        interval = line["values"] if few else f"{line['low']:+.2f} to {line['high']:+.2f}"
        compared.append(
            {
                "rival": rival,
                f"its {METRIC}": f"{numbers.mean(str(rival), METRIC):.1f}",
                "difference": f"{line['effect'] + 0.0:+.2f}",
                "95 % interval": f"single seeds {interval}" if few else interval,
                "n": line["seeds"],
                "verdict": "older code" if others.older else WORDS.get(line["verdict"], line["verdict"]),
                "why": line["reason"],
            }
        )
    columns = ["rival", f"its {METRIC}", "difference", "95 % interval", "n", "verdict", "why"]
    compared.sort(key=lambda row: -float(row["difference"]))
    return pd.DataFrame(compared, columns=columns).set_index("rival")


def _test(mine: str, rival: str) -> ClaimTest:
    part = higher(mine, rival, by=COUNTS, metric=METRIC)
    return ClaimTest(rival, YourLossParams.notebook, (part,), "the claims' smallest effect in MAP@R", seeds=PLANNED)


def nearest(rows: pd.DataFrame, params: YourLossParams, others: Rivals) -> str:
    """The rival whose mean METRIC lies nearest to the loss's; ValueError without rivals."""
    if not others.methods:
        raise ValueError("no rival is on record under these conditions")
    numbers = Numbers(rows)
    mine = numbers.mean(method_of(params).name, METRIC)
    return min(others.methods, key=lambda rival: abs(numbers.mean(rival, METRIC) - mine))


def runs_of_rival(rival: str, others: Rivals) -> list[RunResult]:
    """The finished runs of a rival: on record, or at quick, which keeps none, trained now (seconds) or in the cache."""
    if others.params.profile == "quick":
        return runs.run_all([spec for spec in retrieval(others.params) if spec.method == rival and not spec.setting])
    return [run for run in others.runs if run.spec.method == rival]


def by_class(finished: Iterable[RunResult], rival: Iterable[RunResult], params: YourLossParams) -> pd.DataFrame:
    """R@1 by test class in percent, means over seeds: columns of the loss and the rival and their difference, where the
    loss gains most first."""
    mine = [run for run in finished if run.spec.loss]
    rows = results.hits([*mine, *rival], params)
    rates = 100 * rows.groupby(["class_id", "method"])[["hits"]].sum()["hits"].unstack()
    rates = rates / rows.groupby(["class_id", "method"])["queries"].sum().unstack()
    first, second = mine[0].spec.method, next(name for name in rates if name != mine[0].spec.method)
    known = batches.load_dataset(mine[0].spec).class_names
    rates.index = pd.Index([known[number] for number in rates.index], name="class")
    rates = rates[[first, second]].assign(difference=rates[first] - rates[second])
    return rates.sort_values("difference", ascending=False, kind="stable").rename_axis(columns=None)


def step_costs(params: YourLossParams, others: Rivals, repetitions: int = 5) -> pd.DataFrame:
    """Milliseconds of a loss's part of a step on this CPU, forward, backward and update, and over ProxyAnchor's: all
    take turns on one random batch of the training classes."""
    specs = {spec.method: spec for spec in reversed(retrieval(others.params)) if spec.loss and not spec.setting}
    specs |= {spec.method: spec for spec in your_loss(params) if spec.loss}
    classes = batches.load_dataset(next(iter(specs.values()))).num_train_classes
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(params.batch_size, params.embedding_size, generator=generator)
    labels = torch.arange(params.batch_size) // max(params.samples_per_class, 1) % classes
    calls = {
        name: LossStep(build_loss(spec, classes, params.embedding_size), embeddings, labels, torch.device("cpu"))
        for name, spec in specs.items()
    }
    seconds = pd.Series({name: min(times) for name, times in in_turn(calls, repetitions, "cpu").items()}).sort_values()
    shown = pd.DataFrame({"ms per step": 1e3 * seconds, "over ProxyAnchor": seconds / seconds["ProxyAnchor"]})
    return summaries.readable(shown.rename_axis("loss"), 2)


# --- what was found ---------------------------------------------------------------------------------------------------


def _over_its_start(numbers: Numbers) -> str:
    (mine,) = numbers.ranked([name for name in numbers.methods if name not in UNTRAINED], METRIC, least=1)
    return f"{mine}: {numbers.against(mine, START, METRIC)} of the network that it began with."


YourLoss = Study(YourLossParams, your_loss, your_loss_table, findings=(_over_its_start,))
