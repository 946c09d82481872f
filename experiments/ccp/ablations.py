"""Notebooks 42 to 45: the ablations of CCP (Figs. 4 to 7), validated on a third of the train classes like the paper."""

import functools
from collections.abc import Mapping
from typing import Annotated, Any

from experiments.ccp.claims import TESTS
from experiments.ccp.methods import LOSSES, PROFILES, CcpOptions, Level, ccp_runs, ccp_spec, decided, published_settings
from experiments.methods import BASELINES, expand_seeds
from experiments.params import MAY_BE_EMPTY, Number, Whole, parameters
from experiments.studies import measured
from experiments.study import Study
from experiments.training import records, runs
from experiments.training.spec import RunSpec

# Steps after which a problem ends, beside a single problem
LENGTHS: Mapping[str, tuple[int, ...]] = {"quick": (10, 30), "small": (10, 25, 50, 100), "paper": ()}
OURS = ["C2-CCP-L"]


def lambda_and_proxies(params: Any) -> list[RunSpec]:
    """Fig. 4: the weight of the penalty, and the number of proxies per class with a pool half as large again."""
    weights = [(OURS, f"projection={weight:g}", {"projection": weight}) for weight in params.projections]
    numbers = [
        ([*OURS, "C2-Proxy"], f"M={number}", {"proxies_per_class": number, "pool_size": 3 * number // 2})
        for number in params.numbers
    ]
    return ccp_runs(params, *weights, *numbers)


def pools(params: Any) -> list[RunSpec]:
    """Fig. 5: every number of proxies chosen from every pool; from one as large as their number, at random."""
    levels = [
        (OURS, f"M={number};pool={pool}", {"proxies_per_class": number, "pool_size": pool})
        for number in params.numbers
        for pool in sorted({number, *(size for size in params.pools if size > number)})
    ]
    return ccp_runs(params, *levels)


def alternating(params: Any) -> list[RunSpec]:
    """Fig. 6: each loss within the batch, as one problem, and as problems that follow one another; problems of other
    lengths; controls with a part of CCP left out; theta* as the start of every problem; and CCP over other losses."""
    # proxies do most for C2, its own batch for MS
    by_length = [f"{loss}-CCP-L" for loss in params.losses if loss in ("C2", "MS")]
    lengths = [length for length in LENGTHS[params.profile] if not params.steps or length < params.steps]
    lengths += [params.steps] if lengths and params.steps else []
    levels: list[Level] = [
        ([f"{loss}{form}" for loss in params.losses for form in ("", "-Proxy", "-CCP-L")], "", {}),
        *((by_length, f"problem_steps={length}", {"problem_steps": length}) for length in lengths),
        (OURS, "penalty=none", {"projection": 0.0}),
        (OURS, "picks=random", {"pool_size": params.proxies_per_class}),
        (OURS, "start=best", {"reset": True}),
    ]
    if params.batch_weight:
        levels.append((OURS, "batch_weight=0", {"batch_weight": 0.0}))
    for name in params.over:
        alone = name if name in BASELINES else f"{name}-Proxy"  # a single problem where the loss is no baseline
        levels.append(([alone, f"{name}-CCP"], "", {}))
    return ccp_runs(params, *levels)


def batch_sizes(params: Any) -> list[RunSpec]:
    """Fig. 7: C2 within the batch and with CCP, in batches of several sizes with equally many steps."""
    sized = [(name, size) for size in params.sizes for name in ("C2", *OURS)]
    specs = [ccp_spec(name, params, setting=f"batch={size}", batch_size=size) for name, size in sized]
    return expand_seeds([ccp_spec("untrained", params), *specs], params)


def courses_of(run: runs.RunResult, params: Any) -> list:
    """`course` of a trained run; its finished problems are stored too."""
    if not run.spec.loss:
        return []
    records.derived([run], solved)
    return [measured(run, course)]


@records.measurement("ccp.course")
def course(run: runs.RunResult) -> dict[str, float]:
    """`steps` that a run took; with CCP also how many `problems` it solved."""
    rows = solved(run)
    return {"steps": float(len(run.losses))} | ({} if rows is None else {"problems": len(rows) + 1.0})


@records.measurement("ccp.rounds")
def solved(run: runs.RunResult) -> list[list[float]] | None:
    """Of each finished problem of a run the step of its best weights and its last step, which further numbers follow in
    older lines; None for a run without CCP."""
    from safetensors.torch import load_file

    path = run.folder / "solved.safetensors"
    return load_file(path)["_extra_state"].tolist() if path.is_file() else None


ccp_study = functools.partial(
    Study,
    paper="ccp",
    shared=PROFILES,
    decides=decided,
    published=published_settings,
    measures=courses_of,
    claims=TESTS,
)
LambdaProxies = ccp_study(
    "42_ccp_ablation_lambda_proxies",
    parameters(CcpOptions, projections=tuple[Number, ...], numbers=tuple[Whole, ...]),
    lambda_and_proxies,
    profiles={
        "*": {"numbers": (1, 2, 4, 8, 16)},
        "quick": {"projections": (0.0, 2e-4, 10.0), "numbers": (1, 4, 8)},
        "small": {"projections": (0.0, 1e-5, 2e-4, 1e-2, 0.1, 10.0)},
        "paper": {"projections": (0.0, 1e-5, 2e-4, 1e-2, 0.1, 1.0, 10.0)},
    },
    references={"projections": (2e-4, 0.0), "numbers": (1,)},
)
Pool = ccp_study(
    "43_ccp_ablation_pool",
    # pools: beside the pool that is as large as the number of proxies, a random choice
    parameters(CcpOptions, numbers=tuple[Whole, ...], pools=tuple[Whole, ...]),
    pools,
    profiles={
        "*": {"numbers": (1, 8)},
        "quick": {"pools": (12,)},
        "small": {"pools": (12, 16)},
        "paper": {"numbers": (1, 2, 4, 8, 12), "pools": (12, 16, 20)},
    },
    references={"pools": (12,)},
)
Alternating = ccp_study(
    "44_ccp_ablation_alternating",
    # over: proxy losses of other papers that are projected too
    parameters(CcpOptions, losses=tuple[str, ...], over=Annotated[tuple[str, ...], MAY_BE_EMPTY]),
    alternating,
    profiles={
        "*": {"losses": tuple(LOSSES), "over": ("ProxyAnchor", "PFML")},
        "quick": {"losses": ("C2", "MS"), "over": ("ProxyAnchor",)},
    },
)
BatchSize = ccp_study(
    "45_ccp_ablation_batch_size",
    parameters(CcpOptions, sizes=tuple[Whole, ...]),
    batch_sizes,
    profiles={"*": {"sizes": (16, 32, 64, 128)}, "quick": {"sizes": (16, 32, 128)}},
    references={"sizes": (16,)},
)
