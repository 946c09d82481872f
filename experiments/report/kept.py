"""Which run of a notebook is kept as a model file."""

from experiments.across import recommending, your_images
from experiments.study import Execution
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec


def chosen(execution: Execution, method: str | None = None, seed: int = 0) -> RunResult:
    """The run of a method and a seed, of several folds the first; trained where neither record nor cache has it.

    method: its name, with a setting where it has several, as in "PFML M=5"; None: what notebook 01 recommends,
        fitted to all training classes; of another notebook the only method that it trains.

    Raises:
        ValueError: no such run; lists those that there are.
    """
    params, specs = execution.params, execution.study.specs(execution.params)
    if method is None and isinstance(params, your_images.YourImagesParams):
        finished = execution.run(specs)
        final = recommending.final_specs(recommending.choice_of(finished), finished)
        return execution.run(final[:1])[0]
    of_seed = [spec for spec in specs if spec.seed == seed]
    wanted = [spec for spec in of_seed if (_named(spec) == method if method else spec.loss)]
    wanted = wanted or [spec for spec in of_seed if spec.method == method]
    if len({_named(spec) for spec in wanted}) != 1:
        seeds = ", ".join(map(str, sorted({spec.seed for spec in specs})))
        names = ", ".join(map(repr, dict.fromkeys(_named(spec) for spec in wanted or of_seed or specs)))
        raise ValueError(
            f"{params.notebook} has {len(wanted)} runs for --method {method} --seed {seed}; give one of "
            f"--method {names or '(it has none)'}, and of the seeds {seeds or '(none)'}"
        )
    return execution.run(wanted[:1])[0]


def _named(spec: RunSpec) -> str:
    return " ".join(filter(None, (spec.method, spec.setting)))
