"""Tables that finished runs left in results/, each with what it was made of, and its verdicts."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis import claims, saving, tables
from experiments.analysis.comparing import UNTRAINED, Reason
from experiments.analysis.judging import Verdict, judge
from experiments.analysis.statistics import MIN_SEEDS
from experiments.analysis.summaries import Judged
from experiments.files import repository_root
from experiments.training import records

DATA = {"glyphs": "embedded glyphs", "omniglot": "Omniglot", "mnist": "MNIST"}
DATA |= {"cub": "CUB", "cars": "Cars", "sop": "SOP", "inshop": "In-Shop"}
NETWORKS = {"conv4": "small CNN", "squeezenet1_1": "SqueezeNet", "mobilenet_v2": "MobileNetV2", "resnet50": "ResNet-50"}
_SAID_ELSEWHERE = ("dataset", "backbone", "seeds", "steps", "epochs", "methods")
_SAID_ELSEWHERE += ("small_dim", "mlrc_steps", "variant_steps")  # 0: without these runs


@dataclass(frozen=True, eq=False)
class Stored:
    """A table of results/: a notebook's, under one profile and set of parameters."""

    stem: str  # name of its file
    table: pd.DataFrame
    parameters: Mapping[str, Any]
    device: str = ""  # on what its runs were trained
    costs: pd.DataFrame | None = None  # seconds and what else differs from machine to machine
    picture: Path | None = None  # see `saving.save_picture`
    older: bool = False  # see `of_older_code`
    searches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by method, see `saving.made_by`
    trained: bool = True  # whether any of its runs was
    mixed: bool = False  # whether its runs are of several devices or numerics fingerprints

    @property
    def notebook(self) -> str:
        return self.stem.partition("--")[0]

    @property
    def profile(self) -> str:
        return self.table["profile"].iloc[0]

    @functools.cached_property
    def seeds(self) -> int:
        """How many seeds every trained method and setting has at least; 0 without images."""
        left_out = self.table["method"].isin(UNTRAINED) | self.table["setting"].eq(tables.CURVE)
        rows = self.table[(self.table["dataset"] != tables.SYNTHETIC) & ~left_out]
        return 0 if rows.empty else int(rows.groupby(["protocol", "method", "setting"])["seed"].nunique().min())

    @functools.cached_property
    def label(self) -> str:
        """Data, network, budget, number of seeds and what else was changed, by their names here."""
        return ", ".join(self._words(str, str))

    @property
    def plain_label(self) -> str:
        """The same for a stranger: "CUB subset, pretrained SqueezeNet from fire6 on, 4 epochs, 5 seeds"."""
        return ", ".join(self.plain_words)

    @functools.cached_property
    def plain_words(self) -> list[str]:
        form = "{} from scratch" if self.parameters.get("weights") == "none" else "pretrained {}"
        words = self._words(data_in_words, lambda name: form.format(NETWORKS.get(name.partition(".")[0], name)))
        return [word.replace("samples_per_class=0", "shuffled batches") for word in words]

    def _words(self, data: Callable[[str], str], network: Callable[[str], str]) -> list[str]:
        where = self.table[self.table["dataset"] != tables.SYNTHETIC]
        rows = self.table if where.empty else where
        part = self.parameters.get("train_from")
        form = "head on {}" if part == "head" else f"{{}} from {part} on"
        form = form if part and self.trained else "{}"
        networks = [form.format(network(name)) for name in dict.fromkeys(rows["backbone"]) if name]
        if where.empty:  # a network without images has been timed, which says something of the device alone
            return ["no images", *networks, *([self.device] if networks else [])]
        named = ((name, self.parameters.get(name)) for name in ("epochs", "steps"))
        budget = next((f"{amount} {name[:-1] if amount == 1 else name}" for name, amount in named if amount), "")
        words = [*map(data, dict.fromkeys(where["dataset"])), *networks]
        trained = rows[~rows["method"].isin(UNTRAINED)]
        if budget and trained.groupby("method")["step"].max().nunique() > 1:  # a search chose how many
            budget = f"up to {budget}"
        words += [budget if self.trained else "nothing trained", f"{self.seeds} seed{'s' if self.seeds > 1 else ''}"]
        changed = self.stem.partition("--")[2].split("~")[0].split(",")
        words += [change for change in changed if change.partition("=")[0] not in _SAID_ELSEWHERE]
        return [*filter(None, words)]

    @property
    def heading(self) -> str:
        """The label, the profile, whether the seeds are too few for a verdict, and the code older."""
        marks = ", a direction only" * (0 < self.seeds < MIN_SEEDS) + ", trained by older code" * self.older
        return f"{self.label} ({self.profile}{marks})"

    @functools.cached_property
    def trials(self) -> dict[str, int]:
        committed = {method: search["trials"] for method, search in self.searches.items()}
        return trials_of(self.table, self.parameters.get("search_trials", 0), committed)

    def judged(self, tests: Mapping[str, claims.ClaimTest], **further: Any) -> Judged:
        """The verdicts of the claims of its notebook that this table has rows for, none if its code is an older one;
        tests: all of the paper; further: environments and hits, as in `judging.judge`."""
        own = [claim_id for claim_id, test in tests.items() if test.notebook == self.notebook and not self.older]
        pretrained = self.parameters.get("weights") != "none"
        judged = judge(self.table, tests, own, trials=self.trials, device=self.device, pretrained=pretrained, **further)
        verdicts, compared = judged.verdicts, judged.comparisons
        run = verdicts[(verdicts["verdict"] != Verdict.NOT_RUN) | (verdicts["reason"] != Reason.ROWS)]
        compared = compared[compared["claim_id"].isin(run["claim_id"])]
        return Judged(run.reset_index(drop=True), compared.reset_index(drop=True))


def trials_of(table: pd.DataFrame, own: int, committed: Mapping[str, int]) -> dict[str, int]:
    """By method of a table, how many trials of its own search or of the committed one chose its settings."""
    return {method: own or committed.get(method, 0) for method in table["method"].unique()}


OLDER = (
    "Trained by an outdated version of the code, so that no verdict rests on it: `python -m experiments train --rerun` "
    "trains it anew."
)


def of_older_code(made: Mapping[str, Any]) -> bool:
    """Whether a table, by its record, was trained by code that the present one is not compatible with."""
    return any(
        not records.is_compatible(records.kind(loss or None, algorithm, train_from or None), code)
        for loss, algorithm, train_from, code in made.get(saving.TRAINED_BY, ())
    )


def data_in_words(dataset: str) -> str:
    """ "CUB subset" of "cub-subset"; a reader's own images have their name."""
    words = DATA.get(dataset.removesuffix("-subset"), dataset)
    return f"{words} subset" if dataset.endswith("-subset") else words


def setup_in_words(table: pd.DataFrame) -> str:
    """Data and network of a table's first row: "CUB subset, SqueezeNet"."""
    dataset, backbone = table[["dataset", "backbone"]].iloc[0]
    data = "no images" if dataset == tables.SYNTHETIC else data_in_words(dataset)
    return ", ".join(filter(None, (data, NETWORKS.get(backbone.partition(".")[0], backbone))))


def stored(notebook: str, root: Path | None = None, *, but: Path | None = None) -> list[Stored]:
    """Every table of a notebook in results/, of the profiles that carry more first, more seeds first.

    but: a table that is left out unread, as in "quick/00_tour.csv": a damaged one must not stop its own renewal.
    """
    root = root or repository_root() / "results"
    paths = [path for profile in saving.PROFILES for path in saving.table_paths(root / profile)]
    paths = [path for path in paths if path.stem.partition("--")[0] == notebook and path.relative_to(root) != but]
    return sorted(map(_read, paths), key=lambda table: (saving.PROFILES.index(table.profile), -table.seeds))


def deciding(notebook: str) -> list[str]:
    """The stems of the tables that the verdicts of a notebook rest on, by claim, as results/claims.csv has them."""
    ledger = pd.read_csv(repository_root() / "results" / "claims.csv", keep_default_na=False)
    own = ledger[(ledger["notebook"] == notebook) & (ledger["scale"] == "here") & (ledger["role"] == "named")]
    return [*own.loc[own["decides"] == "yes", "stem"].unique()]


def _read(path: Path) -> Stored:
    made = saving.record(path)
    costs, picture = path.with_suffix(".cost.csv"), path.with_suffix(".png")
    losses = [loss for loss, *_ in made.get(saving.TRAINED_BY, ())]
    return Stored(
        path.stem,
        saving.read(path),
        made["parameters"],
        made["device"],
        pd.read_csv(costs, keep_default_na=False, na_values={"value": ""}) if costs.exists() else None,
        picture if picture.exists() else None,
        of_older_code(made),
        made.get(saving.SEARCHES, {}),
        any(losses) or not losses,
        len({(group["device"], group["rounding"]) for group in made.get("runs", ())}) > 1,
    )
