"""What a notebook does, stated once in the folder of its paper: `Study`. With parameters it is an `Execution`, whose
methods the cells of the notebook call."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments import variables
from experiments.analysis import goldens, judging, results, saving, stored, summaries
from experiments.analysis.claims import ClaimTest
from experiments.figures import charts
from experiments.figures.style import PLAIN, Names
from experiments.methods import BASELINES
from experiments.params import Choice, Params, of_cell, resolve, search_trials_of
from experiments.studies import with_measures
from experiments.training import keys, protocols, records, runs, search
from experiments.training.spec import RunSpec


def _rounded(value: Any) -> Any:
    return f"{value:.3g}" if isinstance(value, float) else value


@dataclass(frozen=True)
class Study:
    """The work of one notebook."""

    name: str  # of its notebook
    params: type[Params]  # the model of its parameters
    # its parameters -> the RunSpecs it trains, in the order of its tables
    specs: Callable[..., list[RunSpec]] = lambda params: []
    # (its finished runs in that order, its parameters) -> the tidy table it saves; None: the rows of the runs, and
    # below them what `measures` finds on each
    tabulate: Callable[..., pd.DataFrame] | None = None
    # (a finished run, its parameters) -> what is measured on its weights alone, rows that the table holds too
    measures: Callable[..., list] = lambda run, params: []
    # all tests of its paper's claims by claim id; none where it settles none
    claims: Mapping[str, ClaimTest] = field(default_factory=dict)
    # (the costs it saves, its parameters) -> a tidy table of their ratios, where claims are about costs
    ratios: Callable[..., pd.DataFrame] | None = None
    paper: str = "together"  # its id
    # what it has otherwise than the recipes of profiles.py, {profile, "*" for all: {parameter: value}}
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # the same of all notebooks of its paper; `profiles` win
    shared: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # (`params.Choice`) -> the parameters that the data set decides
    decides: Callable[[Choice], dict[str, Any]] = lambda choice: {}
    # (parameters, method, setting) -> what the paper says of these runs, {name: methods.Setting}. A name is a field of
    # the RunSpec, "loss.<option>" or "loss_lr.<parameter>". At the profile paper the loss takes its options and rates
    # from here; the fields are the same for all methods, and only compared by `config`
    published: Callable[..., Mapping[str, Any]] = lambda *run: {}
    # {a parameter that is a sweep: levels it must have, or the parameter that is one, because its tables and figures
    # compare with them}
    references: Mapping[str, tuple[float | str, ...]] = field(default_factory=dict)
    one_network: bool = False  # whether it measures the one network that a seed trains, so no protocol with folds does
    # whether its runs take what committed searches found; False: it is about the published settings
    takes_searches: bool = True
    own_search: bool = False  # whether it searches a loss that is not committed, so that `tune` leaves it out
    # whether it saves a table; False: it reads what others left in results/, and the workflow executes it after these
    saves: bool = True

    @property
    def settled(self) -> list[str]:
        return [claim_id for claim_id, test in self.claims.items() if test.notebook == self.name]

    def configured(self, given: Mapping[str, Any]) -> Any:
        return resolve(self, given)

    def from_cell(self, namespace: Mapping[str, object]) -> "Execution":
        """The study with the parameters of its notebook, from `globals()`, see `params.of_cell`; its runs are specified
        once, so that whatever is wrong with one of them is an error here and not in a worker.

        Raises:
            ValueError: on a name that is nearly a parameter; on an unknown profile, dataset, method or backbone; on a
                number that makes no sense; on a sweep without its reference level.
            TypeError: on a value of the wrong type.
            FileNotFoundError: on weights that are not there.
        """
        given = of_cell(namespace, self.params.defaults())
        params = self.configured(given)
        self.specs_untrained(params)
        return Execution(self, params)

    def specs_untrained(self, params: Params) -> list[RunSpec]:
        """The runs as `config` lists them: a search, which would train, is left out."""
        if search_trials_of(params):  # it begins where no search has been taken
            params = params.model_copy(update={"search_trials": 0}).untuned()
        return self.specs(params)

    def table(self, finished: Iterable[runs.RunResult], params: Params) -> pd.DataFrame:
        if self.tabulate:
            return self.tabulate(finished, params)
        return with_measures(finished, self.measures, params)

    def in_results(self, but: Path | None = None) -> list[stored.Stored]:
        """Its tables in results/, see `stored.stored`, with the ratios of costs that its claims are judged by."""
        entries = stored.stored(self.name, but=but)
        for number, entry in enumerate(entries):
            if self.ratios and entry.costs is not None:
                ratios = self.ratios(entry.costs, self.params_of(entry))
                entries[number] = dataclasses.replace(entry, table=pd.concat([entry.table, ratios]))
        return entries

    def setup(self) -> pd.DataFrame:
        """Data, network, budget and settings of the table that decides, of its first own method, beside the paper's."""
        if not (entries := self._beyond_demo()[0]):
            return pd.DataFrame(columns=["here", "published"])
        entry = entries[0]
        here, paper = self.params_of(entry), self.configured({"profile": "paper"})
        budget = f"{paper.epochs} epochs" if paper.epochs else "until the validation score no longer rises"
        theirs = (stored.data_in_words(paper.dataset), paper.backbone, budget, f"{paper.seeds} seeds")
        both = itertools.zip_longest(entry.plain_words, theirs, fillvalue="")
        rows = dict(zip(("data", "network", "budget", "seeds"), both))
        own = [spec for spec in self.specs_untrained(here) if spec.loss and spec.method not in BASELINES]
        own = [spec for spec in own if spec.method == own[0].method]
        own = [spec for spec in own if not spec.setting] or own
        if own and (theirs_tried := search_trials_of(paper)):
            rows["search"] = f"{entry.trials.get(own[0].method, 0)} trials per method", f"{theirs_tried} trials"
        for name, setting in self.published(paper, own[0].method, "").items() if own else ():
            option = name.removeprefix("loss.")
            fields = [{**vars(s), "loss_lr": max(s.loss_lr.values(), default=None), **s.loss_options} for s in own]
            values = {str(_rounded(of_run.get(option))) for of_run in fields} - {"None"}
            if values and (option != name or name in ("embedding_size", "batch_size", "lr", "loss_lr")):
                said = setting.source if setting.value is None else _rounded(setting.value)
                rows[option] = values.pop() if len(values) == 1 else "varied", str(said)
        here_of = f"here ({own[0].method})" if own else "here"
        return pd.DataFrame.from_dict(rows, orient="index", columns=[here_of, "published"])

    def evidence(self, metrics: Sequence[str], figure: Callable | None = None) -> None:
        """Show the tables of results/ that verdicts rest on: their columns `metrics`, if any, and a figure of each."""
        self._show(self._beyond_demo()[0], metrics, figure)

    def further(self, metrics: Sequence[str]) -> None:
        """Show every comparison that decides, and what else results/ holds; metrics as in `evidence`."""
        from IPython.display import display

        decisive, others = self._beyond_demo()
        for entry in decisive:
            display(entry.judged(self.claims))
        self._show(others, metrics)

    def validation_curves(self, names: Names = PLAIN) -> None:
        """Show R@1 on validation classes by epoch, at the chosen learning rates, where searches chose the number of
        epochs of a table that verdicts rest on."""
        import matplotlib.pyplot as plt
        from IPython.display import display

        for entry in self._beyond_demo()[0]:
            params, curves = self.params_of(entry), {}
            chosen = params.searches() if params.rates else {}
            for method in filter(chosen.get, entry.searches):
                found = chosen[method]
                scores = search.curve_of(found["trials"][found["found"]["trial"]], "R@1")
                curves[method] = params.epochs * np.array([*scores]) / max(scores), 100 * np.array([*scores.values()])
            if curves:
                title = f"{stored.setup_in_words(entry.table)}, one fold"
                display(drawn := charts.lines(curves, "epoch", "validation R@1 (%)", title=title, names=names))
                plt.close(drawn)

    def _show(self, entries: Iterable[stored.Stored], metrics: Sequence[str], figure: Callable | None = None) -> None:
        import matplotlib.pyplot as plt
        from IPython.display import Image, Markdown, display

        for entry in entries:
            display(Markdown(f"**{entry.heading}**, trained on {entry.device}"))
            if figure:
                display(drawn := figure(entry.table))
                plt.close(drawn)
            if metrics:
                display(summaries.pivot(entry.table, metrics))
            if metrics and entry.picture:
                display(Image(entry.picture, alt=f"Figure of {self.name} on {entry.plain_label}"))

    def _beyond_demo(self) -> tuple[list[stored.Stored], list[stored.Stored]]:
        """Its tables in results/ of other profiles than quick: those that verdicts rest on, the first if none does, in
        the order of claims, and the others."""
        entries = [each for each in self.in_results(but=Path("quick", f"{self.name}.csv")) if each.profile != "quick"]
        decide = stored.deciding(self.name)
        first = sorted((each for each in entries if each.stem in decide), key=lambda each: decide.index(each.stem))
        first = first or entries[:1]
        return first, [entry for entry in entries if entry not in first]

    def params_of(self, entry: stored.Stored) -> Params:
        """The parameters that a table in results/ was made with; an older version may have had others."""
        known = self.params.defaults()
        return self.configured({name: value for name, value in entry.parameters.items() if name in known})


@dataclass(frozen=True, repr=False)
class Execution:
    """A study with parameters."""

    study: Study
    params: Params

    def __repr__(self) -> str:
        return repr(self.params)

    def _repr_html_(self) -> str:
        return self.params._repr_html_()

    def run(
        self, specs: Iterable[RunSpec] | None = None, jobs: int | None = None, *, rerun: bool = False
    ) -> list[runs.RunResult]:
        """The finished runs of the study (specs: None: all), trained where neither store nor cache has them, `jobs` at
        a time (None: one per core); says how many are outdated. What the study measures on a run's weights is on record
        when the run is, but for what it measures on several together, as on the models of folds.

        With DMLREPRO_TRAIN=0 they are those of the seeds of which the store has every run, and none is trained;
        FileNotFoundError where there is no such seed.
        """
        specs = self.study.specs(self.params) if specs is None else list(specs)
        file = records.file_of(self.params.profile, self.study.name)
        if file and not variables.trains():
            there = [one is not None for one in runs.environments(specs, file)]
            missing, every = {spec.seed for spec, present in zip(specs, there) if not present}, {s.seed for s in specs}
            specs = [spec for spec in specs if spec.seed not in missing]
            if not specs:
                raise FileNotFoundError(
                    f"{self.study.name}: {there.count(False)} of {len(there)} runs are not in {file.parent}, some of "
                    "every seed; train them (`python -m experiments train`), or leave DMLREPRO_TRAIN=0 out"
                )
            if missing:
                print(f"seeds in {file.name}: {len(every - missing)} of {len(every)}")
            finished = runs.run_all(specs, record=file)
        else:
            finished = runs.run_all(specs, jobs=jobs, record=file, measure=self.measure, rerun=rerun)
        if old := sum(run.stale for run in finished):
            print(f"{old} of {len(finished)} runs. {stored.OLDER}")
        return finished

    def measure(self, finished: runs.RunResult) -> None:
        """All that the table and the verdicts need of the weights of one finished run."""
        protocol = protocols.PROTOCOLS.get(finished.spec.protocol)
        if finished.spec.fold is None or (protocol and "fold" in protocol.structure):
            results.hits([finished], self.params)
        self.study.measures(finished, self.params)

    def table(self, finished: Sequence[runs.RunResult] = (), cost: pd.DataFrame | None = None) -> pd.DataFrame:
        """The table of finished runs, saved with their provenance, see `saving.save`; cost: None: that of the runs."""
        table = self.study.table(finished, self.params)
        saving.save(table, self.params, runs=finished, cost=cost)
        return table

    def verdicts(self, table: pd.DataFrame, finished: Sequence[runs.RunResult] = ()) -> summaries.Judged:
        """The verdicts on the claims that the study settles, from the table of this very execution; the intervals
        over resampled test classes need its finished runs."""
        tests = self.study.claims
        path = saving.table_path(self.params)  # of the table that has just been saved, maybe of runs of older code
        if any(run.stale for run in finished) or (path.exists() and stored.of_older_code(saving.record(path))):
            return judging.judge(table, tests, [])
        return judging.judge(
            table,
            tests,
            self.study.settled,
            hits=results.hits(finished, self.params) if finished else None,
            trials=self.trials(table),
            device=" + ".join(sorted({run.made["device"] for run in finished})) or keys.device_name(),
            pretrained=self.params.weights != "none",
        )

    def trials(self, table: pd.DataFrame) -> dict[str, int]:
        """See `stored.trials_of`. A committed search counts with the settings that it tried, 16, not its 24 runs."""
        committed = {method: len(search["trials"]) for method, search in self.params.searches().items()}
        return stored.trials_of(table, search_trials_of(self.params), committed)

    @contextmanager
    def needs_images(self) -> Iterator[None]:
        """Around figures that need images or trained weights: with DMLREPRO_TRAIN=0 a line may stand in their place."""
        try:
            yield
        except (FileNotFoundError, records.NotMeasured) as missing:
            if variables.trains():
                raise
            print(f"Not shown with DMLREPRO_TRAIN=0: it needs images or trained weights ({missing})")

    def check(self, table: pd.DataFrame) -> None:
        goldens.check(table, self.params)
