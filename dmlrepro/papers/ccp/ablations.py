"""Notebooks 42 to 45: the ablations of CCP (Figs. 4 to 7).

Every run is validated on a third of the train classes, as the paper's are. The default point, C2-CCP-L, is one run of
notebooks 42, 43 and 44 wherever their parameters agree.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dmlrepro.evidence import tables
from dmlrepro.evidence.stored import Numbers, agrees, brings, where_learned
from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.ccp.methods import LOSSES, CcpParams, ccp_runs, where_it_alternates
from dmlrepro.papers.methods import BASELINES
from dmlrepro.papers.studies import measured, with_measured
from dmlrepro.training.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = {"numbers": (1, 2, 4, 8, 16)}


class AblationParams(CcpParams):
    """What the ablations share: at small too a head on the features of a pretrained network, by seconds per run."""

    heads: ClassVar = ("quick", "small")


@dataclass(frozen=True)
class LambdaProxiesParams(AblationParams):
    """The parameters of notebook 42."""

    notebook = "42_ccp_ablation_lambda_proxies"
    references: ClassVar = {"projections": (2e-4, 0.0)}
    overrides: ClassVar = CcpParams.overrides | {
        "quick": CcpParams.overrides["quick"] | {"projections": (0.0, 2e-4, 0.1, 10.0), "numbers": (1, 4, 8)},
        "small": CcpParams.overrides["small"] | {"projections": (0.0, 1e-5, 2e-4, 1e-2, 0.1, 10.0)} | NUMBERS,
        "paper": CcpParams.overrides["paper"] | {"projections": (0.0, 1e-5, 2e-4, 1e-2, 0.1, 1.0, 10.0)} | NUMBERS,
    }

    projections: tuple[float, ...] | None = None
    numbers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PoolParams(AblationParams):
    """The parameters of notebook 43."""

    notebook = "43_ccp_ablation_pool"
    references: ClassVar = {"pools": (12,)}
    overrides: ClassVar = CcpParams.overrides | {
        "quick": CcpParams.overrides["quick"] | {"numbers": (1, 8), "pools": (12,)},
        "small": CcpParams.overrides["small"] | {"numbers": (1, 4, 8), "pools": (12, 16)},
        "paper": CcpParams.overrides["paper"] | {"numbers": (1, 2, 4, 8, 12), "pools": (12, 16, 20)},
    }

    numbers: tuple[int, ...] | None = None
    pools: tuple[int, ...] | None = None  # beside the pool that is as large as the number of proxies: a random choice


@dataclass(frozen=True)
class AlternatingParams(AblationParams):
    """The parameters of notebook 44."""

    notebook = "44_ccp_ablation_alternating"
    overrides: ClassVar = CcpParams.overrides | {
        "quick": CcpParams.overrides["quick"] | {"losses": tuple(LOSSES), "over": ("ProxyAnchor",)},
        "small": CcpParams.overrides["small"] | {"losses": tuple(LOSSES), "over": ("ProxyAnchor", "PFML")},
        "paper": CcpParams.overrides["paper"] | {"losses": tuple(LOSSES), "over": ("ProxyAnchor", "PFML")},
    }

    may_be_empty: ClassVar = ("over",)

    losses: tuple[str, ...] | None = None
    over: tuple[str, ...] | None = None  # proxy losses of other papers that are projected too


@dataclass(frozen=True)
class BatchSizeParams(AblationParams):
    """The parameters of notebook 45."""

    notebook = "45_ccp_ablation_batch_size"
    overrides: ClassVar = CcpParams.overrides | {
        "quick": CcpParams.overrides["quick"] | {"sizes": (16, 32, 128)},
        "small": CcpParams.overrides["small"] | {"sizes": (16, 32, 64, 128)},
        "paper": CcpParams.overrides["paper"] | {"sizes": (16, 32, 64, 128)},
    }

    sizes: tuple[int, ...] | None = None


def lambda_and_proxies(params: LambdaProxiesParams) -> list[RunSpec]:
    """Fig. 4: the weight of the penalty, and the number of proxies per class with a pool half as large again."""
    found = ccp_runs(["untrained"], params)
    for weight in params.projections:
        found += ccp_runs(["C2-CCP-L"], params, setting=f"projection={weight:g}", scheme={"projection": weight})
    for number in params.numbers:
        found += ccp_runs(["C2-CCP-L"], params, setting=f"M={number}", scheme=_proxies(number, 3 * number // 2))
        found += ccp_runs(["C2-Proxy"], params, setting=f"M={number}", scheme=_proxies(number, 3 * number // 2))
    return found


def pools(params: PoolParams) -> list[RunSpec]:
    """Fig. 5: every number of proxies chosen from every pool; from one as large as their number, at random."""
    found = ccp_runs(["untrained"], params)
    for number in params.numbers:
        for pool in sorted({number, *(size for size in params.pools if size > number)}):
            found += ccp_runs(["C2-CCP-L"], params, setting=f"M={number};pool={pool}", scheme=_proxies(number, pool))
    return found


def alternating(params: AlternatingParams) -> list[RunSpec]:
    """Fig. 6: each loss within the batch, as one problem, and as problems that follow one another.

    Then the controls, each with one part of CCP left out; theta* as the start of every problem; CCP over other losses.
    """
    found = ccp_runs(["untrained"], params)
    found += ccp_runs([f"{loss}{form}" for loss in params.losses for form in ("", "-Proxy", "-CCP-L")], params)
    controls = {"penalty=none": {"projection": 0.0}, "picks=random": {"pool_size": params.proxies_per_class}}
    controls |= {"start=best": {"reset": True}}
    for setting, change in controls.items():
        found += ccp_runs(["C2-CCP-L"], params, setting=setting, scheme=change)
    if params.batch_weight:
        found += ccp_runs(["C2-CCP-L"], params, setting="batch_weight=0", scheme={"batch_weight": 0.0})
    for name in params.over:
        found += ccp_runs([_alone(name), f"{name}-CCP"], params)
    return found


def _alone(name: str) -> str:
    """What CCP over another paper's loss is compared with: the loss, or a single problem where it is no baseline."""
    return name if name in BASELINES else f"{name}-Proxy"


def batch_sizes(params: BatchSizeParams) -> list[RunSpec]:
    """Fig. 7: C2 within the batch and with CCP, in batches of several sizes with equally many steps."""
    found = ccp_runs(["untrained"], params)
    for size in params.sizes:
        found += ccp_runs(["C2", "C2-CCP-L"], params, setting=f"batch={size}", batch_size=size)
    return found


def _proxies(number: int, pool: int) -> Mapping[str, int]:
    return {"proxies_per_class": number, "pool_size": max(pool, number)}


def alternating_table(finished: Iterable, params: CcpParams) -> "pd.DataFrame":
    """The rows of the runs; `steps` that each took, and of CCP how many problems it solved and how they went."""
    finished = list(finished)
    return with_measured(finished, [measured(run, course(run)) for run in finished if run.spec.loss], params)


def course(run) -> dict[str, float]:
    """`steps`; of CCP also `problems`, and radius and spread of the converged proxies in the first and last of those
    that another one followed."""
    values = {"steps": float(len(run.losses))}
    rows = solved(run)
    if rows is None:
        return values
    values["problems"] = len(rows) + 1.0
    for name, row in (("first", rows[:1]), ("last", rows[-1:])):
        for _, radius, spread in row:
            values |= {f"{name}_covering_radius": radius, f"{name}_proxy_spread": spread}
    return values


def solved(run) -> list[list[float]] | None:
    """The record of a run's scheme, rows (step, covering radius, spread); None for a run without one."""
    from safetensors.torch import load_file

    path = run.folder / "solved.safetensors"
    return load_file(path)["_extra_state"].tolist() if path.is_file() else None


def steps_per_problem(run) -> list[int]:
    """Fig. 6(b): the steps of each finished problem; it ends a patience of evaluations after its best one."""
    spec = run.spec
    ends = [step + spec.scheme_options["problem_patience"] * spec.eval_every for step, _, _ in solved(run)]
    return [int(end - start) for start, end in zip([0, *ends], ends)]


def problem_lengths(finished: Iterable) -> "pd.DataFrame":
    """Fig. 6(b) as a table: the steps of each finished problem, a row per method and seed, a column per problem."""
    import pandas as pd

    plain = (run for run in finished if run.spec.scheme == "chance_constrained" and not run.spec.setting)
    rows = {(run.spec.method, run.spec.seed): steps_per_problem(run) for run in plain}
    table = pd.DataFrame.from_dict(rows, orient="index").astype("Int64")
    table.index = pd.MultiIndex.from_tuples(rows, names=["method", "seed"])
    return table.set_axis([f"problem {number + 1}" for number in table], axis=1)


# --- what was found ---------------------------------------------------------------------------------------------------

OURS, SINGLE = "C2-CCP-L", "C2-Proxy"


def gains(numbers: Numbers, subject: str, baseline: str, metric: str = "MAP@R") -> tuple[bool, str]:
    """Whether the subject beats the baseline with every loss, and "1 of 2 losses (C1 +1.2, C2 -0.3 ...)", by the means.

    subject, baseline: cells with {} for the loss, such as "{}-CCP-L" and "{}". MissingRows without any loss.
    """
    found = {}
    for loss in LOSSES:
        try:
            found[loss] = numbers.effects(subject.format(loss), baseline.format(loss), metric)
        except tables.MissingRows:
            continue
    if not found:
        raise tables.MissingRows(f"{subject} and {baseline} of any loss ({metric})")
    ahead = [loss for loss, effects in found.items() if effects.mean() > 0]
    several = {len(effects) for effects in found.values()}
    said = ", ".join(f"{loss} {effects.mean():+.1f}" for loss, effects in found.items())
    return len(ahead) == len(
        found
    ), f"{len(ahead)} of {len(found)} losses ({said} points of {metric}; n = {min(several)})"


def _penalty(numbers: Numbers) -> str:
    helps = numbers.mean(_lambda(2e-4), "MAP@R") > numbers.mean(_lambda(0), "MAP@R")
    return (
        f"The penalty at λ = 0.0002 {'helps' if helps else 'does not help'}, {agrees(helps)}: "
        f"{numbers.against(_lambda(2e-4), _lambda(0), 'MAP@R')} without it."
    )


def _too_much_penalty(numbers: Numbers) -> str:
    most = f"{OURS};projection={max(numbers.levels(OURS, 'projection', 'MAP@R')):g}"
    hurts = numbers.mean(most, "MAP@R") < numbers.mean(_lambda(2e-4), "MAP@R")
    return (
        f"The largest λ, {most.rpartition('=')[2]}, {'hurts' if hurts else 'does not hurt'}, {agrees(hurts)}: "
        f"{numbers.against(most, _lambda(2e-4), 'MAP@R')} at 0.0002."
    )


def _more_proxies(numbers: Numbers) -> str:
    few, many = _ends(numbers, OURS, "M")
    return (
        f"More proxies bring CCP {brings(numbers.effects(many, few, 'MAP@R'))}: at {_level(many)} "
        f"{numbers.against(many, few, 'MAP@R')} at {_level(few)}; a single problem gains "
        f"{numbers.gap(many.replace(OURS, SINGLE), few.replace(OURS, SINGLE), 'MAP@R')}."
    )


def _chosen_proxies(numbers: Numbers) -> str:
    chosen, drawn = f"{OURS};M=8;pool=12", f"{OURS};M=8;pool=8"
    return (
        "Choosing eight proxies by k-center out of twelve samples, not at random, brings "
        f"{brings(numbers.effects(chosen, drawn, 'MAP@R'))}: {numbers.against(chosen, drawn, 'MAP@R')}."
    )


def _one_chosen_proxy(numbers: Numbers) -> str:
    chosen, drawn = f"{OURS};M=1;pool=12", f"{OURS};M=1;pool=1"
    gains_nothing = numbers.mean(chosen, "MAP@R") - numbers.mean(drawn, "MAP@R") <= 0.5
    return (
        f"For a single proxy the choice gains {'no more than half a point' if gains_nothing else 'something too'}, "
        f"{agrees(gains_nothing)}: {numbers.against(chosen, drawn, 'MAP@R')}."
    )


def _alternating(numbers: Numbers) -> str:
    every, said = gains(numbers, "{}-CCP-L", "{}-Proxy")
    return f"Alternating problems beat a single one with {said}, {agrees(every)}, where they do with every loss."


def _parts(numbers: Numbers) -> str:
    changes = {"penalty=none": "the penalty", "picks=random": "the choice of samples", "start=best": "the last weights"}
    effects = {name: numbers.effects(f"{OURS};{cell}", OURS, "MAP@R") for cell, name in changes.items()}
    said = ", ".join(f"without {name} {effect.mean():+.1f}" for name, effect in effects.items())
    most = min(effects, key=lambda name: effects[name].mean())
    count = min(map(len, effects.values()))
    if effects[most].mean() >= 0:
        return f"No part of CCP that was left out was missed: {said} points of MAP@R (n = {count})."
    return f"Of CCP's parts {most} matters most: {said} points of MAP@R (n = {count})."


def _over_proxy_anchor(numbers: Numbers) -> str:
    return (
        "Over ProxyAnchor, which the paper does not try, CCP, whose proxies start at samples in the first problem too, "
        f"{_helps(numbers, 'ProxyAnchor')}."
    )


def _over_pfml(numbers: Numbers) -> str:
    return f"Over PFML, against a single problem with as many proxies, it {_helps(numbers, 'PFML')}."


def _helps(numbers: Numbers, name: str) -> str:
    cells = f"{name}-CCP", _alone(name)
    helps = numbers.effects(*cells, "MAP@R").mean() > 0
    return f"{'helps' if helps else 'does not help'}: {numbers.against(*cells, 'MAP@R')}"


def _steps(numbers: Numbers) -> str:
    pairs = [("C2", f"{OURS}"), ("MS", "MS-CCP-L")]
    more = {loss: 100 * (numbers.mean(ccp, "steps") / numbers.mean(loss, "steps") - 1) for loss, ccp in pairs}
    if not any(more.values()):
        return "No run stopped early: whether CCP takes more steps stays open."
    fits = all(value >= 5 for value in more.values())
    said = " and ".join(f"{value:+.0f} % with {loss}" for loss, value in more.items())
    return f"Until it stops early CCP takes {said} of the steps of the loss itself, {agrees(fits)} (+10 to +35 %)."


def _baseline_batches(numbers: Numbers) -> str:
    small, large = _ends(numbers, "C2", "batch")
    gain = numbers.mean(large, "MAP@R") > numbers.mean(small, "MAP@R")
    return (
        f"C2 within the batch {'gains' if gain else 'does not gain'} from larger batches, {agrees(gain)}: "
        f"{_level(large)} has {numbers.against(large, small, 'MAP@R')} at {_level(small)}."
    )


def _ccp_batches(numbers: Numbers) -> str:
    small, large = _ends(numbers, OURS, "batch")
    on_par = abs(numbers.mean(large, "MAP@R") - numbers.mean(small, "MAP@R")) <= 1
    return (
        f"With CCP small and large batches are {'on par' if on_par else 'not on par (more than a point apart)'}, "
        f"{agrees(on_par)}: {_level(large)} has {numbers.against(large, small, 'MAP@R')} at {_level(small)}."
    )


def _ends(numbers: Numbers, method: str, name: str) -> tuple[str, str]:
    """The cells of the lowest and the highest level of a setting."""
    levels = numbers.levels(method, name, "MAP@R")
    return f"{method};{name}={min(levels):g}", f"{method};{name}={max(levels):g}"


def _level(cell: str) -> str:
    return cell.partition(";")[2].replace("=", " = ")


def _lambda(weight: float) -> str:
    return f"{OURS};projection={weight:g}"


NOTEBOOKS = [
    Notebook(
        LambdaProxiesParams,
        lambda_and_proxies,
        findings=where_learned(
            where_it_alternates(_penalty, _lambda(2e-4), _lambda(0), said_else=True),
            where_it_alternates(_too_much_penalty, _lambda(2e-4), _lambda(10)),
            _more_proxies,
        ),
    ),
    Notebook(
        PoolParams,
        pools,
        findings=where_learned(
            where_it_alternates(_chosen_proxies, f"{OURS};M=8;pool=12", f"{OURS};M=8;pool=8", said_else=True),
            where_it_alternates(_one_chosen_proxy, f"{OURS};M=1;pool=12", f"{OURS};M=1;pool=1"),
        ),
    ),
    Notebook(
        AlternatingParams,
        alternating,
        alternating_table,
        findings=where_learned(
            _alternating,
            where_it_alternates(_parts, OURS, SINGLE, said_else=True),
            _over_proxy_anchor,
            where_it_alternates(_over_pfml, "PFML-CCP", "PFML-Proxy"),
            _steps,
        ),
    ),
    Notebook(BatchSizeParams, batch_sizes, findings=where_learned(_ccp_batches, _baseline_batches)),
]
