"""python -m experiments: data, settings, training and tuning without Jupyter, and what the Makefile and the
workflow call.

A command is a function of its options; what it returns is its exit status, None: 0. It imports what it needs itself, so
that the others need not wait for it.
"""

import argparse
import ast
import contextlib
import difflib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmlrepro import __version__
from experiments.files import FullDisk, read_json, repository_root

if TYPE_CHECKING:
    from experiments.study import Execution, Study
    from experiments.training.spec import RunSpec


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return options.run(options) or 0
    except ModuleNotFoundError as error:
        if (error.name or "experiments").partition(".")[0] in ("dmlrepro", "experiments"):
            raise  # a mistake of ours, not a package of an extra
        print(f"dmlrepro: {error.name} is not installed; pip install 'dmlrepro[notebooks]'", file=sys.stderr)
        return 2
    except BrokenPipeError as error:
        with contextlib.suppress(BrokenPipeError):
            print(flush=True)  # an empty line: does anybody read it?
            print(f"dmlrepro: {error}", file=sys.stderr)  # another pipe broke, as that of a worker
            return 2
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # who reads has read enough, as `head`
        return 1
    except (ValueError, TypeError, OSError, FloatingPointError, MemoryError) as error:
        print(f"dmlrepro: {error}", file=sys.stderr)
        return 2


def _params(options: argparse.Namespace, study: "Study"):
    values: dict[str, Any] = {"profile": options.profile} | dict(options.parameters)
    for name, text in options.parameters:
        with contextlib.suppress(ValueError, SyntaxError):
            values[name] = ast.literal_eval(text)
    return study.configured(values)


def _selected(names: list[str], saves: bool = False) -> list[str]:
    """Some notebooks, or all, by their full names; saves: those that save a table."""
    from experiments.report import catalogue

    studies = [catalogue.find(name) for name in names] or catalogue.studies().values()
    return [study.name for study in studies if study.saves or not saves]


def data_check(options: argparse.Namespace) -> None:
    from experiments.datasets import images, manifests

    print(manifests.check(options.name))
    manifest, _ = manifests.present(options.name)
    if isinstance(manifest.images, tuple):
        print(images.check(manifest))


def data_fetch(options: argparse.Namespace) -> None:
    from experiments.datasets import downloads

    downloads.fetch(options.name)


def shared_parameters(options: argparse.Namespace) -> None:
    import inspect

    from experiments.params import Params

    print(inspect.getdoc(Params))


def train(options: argparse.Namespace) -> None:
    from experiments.training import records, runs

    pooled: list[RunSpec] = []
    results: list[runs.RunResult] = []
    failures = []
    for execution in _executions(options):
        every, params = execution.study.specs(execution.params), execution.params
        if params.takes_committed and not params.searches():
            absent = params.search_name("METHOD")
            print(f"{execution.study.name} has no search {absent}: methods train with their default settings")
        specs = [spec for spec in every if options.seed in (None, spec.seed)]
        if every and not specs:
            seeds = sorted({spec.seed for spec in every})
            raise ValueError(f"{execution.study.name} has no run of seed {options.seed}, its seeds are {seeds}")
        if not records.file_of(params.profile, execution.study.name):
            pooled += specs
            continue
        try:
            results += execution.run(specs, options.jobs, rerun=options.rerun)
        except FullDisk:
            raise
        except Exception as error:  # the other notebooks are trained before it is said
            failures.append(error)
            print(f"{execution.study.name}: {error}", file=sys.stderr)
    try:
        results += runs.run_all(pooled, jobs=options.jobs)
    except FullDisk:
        raise
    except Exception as error:
        failures.append(error)
        print(error, file=sys.stderr)
    if failures and not (options.grid and options.seed is None):  # in a build the notebooks of such a run fail alone
        raise failures[0]
    fresh = {result.key for result in results if not result.from_cache}
    distinct = len({result.key for result in results})
    print(f"{distinct} distinct runs of {len(results)}: {len(fresh)} trained now, the others were finished")


def _executions(options: argparse.Namespace) -> Iterator["Execution"]:
    """Studies with the parameters of the command line, or of executions of the workflow."""
    from experiments.report import catalogue
    from experiments.study import Execution

    if not (path := options.grid):
        for study in map(catalogue.find, _selected(options.notebooks)):
            yield Execution(study, _params(options, study))
        return
    if options.parameters or options.profile != "quick":
        raise ValueError("--grid says the profile and the parameters of every execution; leave out --profile and -p")
    remedy = "give the executions.json of a build, as in build/quick after `make results`, which makes it anew"
    grid = read_json(path, remedy)
    if not isinstance(grid, dict) or not {"profile", "executions"} <= set(grid):
        raise ValueError(f"{path} holds no profile and executions; {remedy}")
    if unknown := [name for name in options.notebooks if name not in grid["executions"]]:
        raise ValueError(f"{path} has no {', '.join(unknown)}; it has {', '.join(grid['executions'])}")
    for name in options.notebooks or grid["executions"]:
        asked = grid["executions"][name]
        study = catalogue.find(asked["notebook"])
        yield Execution(study, study.configured({"profile": grid["profile"]} | asked["parameters"]))


def records_status(options: argparse.Namespace) -> None:
    from experiments.training import checking

    states = checking.states()
    print(states.to_string(index=False) if len(states) else "no runs are stored")


def records_check(options: argparse.Namespace) -> int:
    from experiments.report import searches
    from experiments.training import checking

    others = searches.outdated()
    for table, files in others.items():
        print(f"results/{table} rests on another search than {', '.join(files)} is now: make it again")
    rows = checking.check(options.sample, options.kinds, options.jobs)
    for row in rows:
        print(f"{row['kind']}: {row['trained']} of {row['runs']} runs trained again, {row['differ'] or 'the same'}")
    return 1 if others or any(row["differ"] for row in rows) else 0


def tune(options: argparse.Namespace) -> None:
    import pandas as pd

    from experiments import papers
    from experiments.methods import summary
    from experiments.report import catalogue, searches

    known = papers.methods()
    methods, others = ([name for name in options.what if (name in known) == is_method] for is_method in (True, False))
    for name in others:
        if alike := difflib.get_close_matches(name, known, cutoff=0.7):
            raise ValueError(f"no method {name!r}; did you mean {alike[0]!r}?")
    # the notebooks across papers, 00 to 03, come last: the notebooks of a paper know the parameters of its methods
    names = others or sorted(catalogue.studies(), key=lambda name: (name.startswith("0"), name))
    every = searches.wanted(map(catalogue.find, names), lambda study: _params(options, study), methods)
    finished = searches.run(every, options.jobs, options.again)
    rows = [{"method": record["method"]} | summary(record) for record in finished]
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.4g}".format, na_rep=""))
    for record in finished:
        if ends := searches.at_an_end(record):
            print(f"{record['method']}: {', '.join(ends)} lies within 5 % of an end of its range; widen it")
    for table, files in searches.outdated().items():
        print(f"results/{table} was made with another {' and '.join(files)}: execute its notebook again")


def config(options: argparse.Namespace) -> None:
    from experiments.report import catalogue, costs, show

    study = catalogue.find(options.notebook)
    params = _params(options, study)
    print(show.text(study, params), "", costs.described(study, params), sep="\n")


def publish(options: argparse.Namespace) -> None:
    from experiments.analysis import saving
    from experiments.report import regression, verdicts

    target = repository_root() / "results" / options.folder.absolute().name
    if target.name not in saving.PROFILES:
        known = ", ".join(saving.PROFILES)
        raise ValueError(f"{options.folder} is no folder of a profile ({known}), as build/quick is; give such a one")
    names = _selected(options.notebooks, saves=True) if options.notebooks else []
    if options.notebooks and not names:
        print("these notebooks save no table")
        return
    tables, moved = regression.publish(options.folder, target, names, everything=options.everything)
    print(f"{tables} tables valid, {moved} new or changed in {target.relative_to(repository_root())}/")
    if verdicts.write():
        print("results/claims.csv follows them")


def summary(options: argparse.Namespace) -> int:
    """What the notebooks of a build folder took; 1 where a committed table is not what they make."""
    from experiments.report import regression

    table = regression.summary(options.folder)
    print(table.to_string(index=False))
    print(f"{len(table)} notebooks, {table['rows'].sum()} rows")
    committed = repository_root() / "results" / options.folder.absolute().name
    reasons = regression.outdated(options.folder, committed)
    for name, why in reasons.items():
        print(f"{committed.relative_to(repository_root())}/{name}.csv is not what the present code makes: {why}")
    if reasons:
        print("if that is meant, `make update-golden` or `make notebooks` renew what is committed")
    return 1 if reasons else 0


def report(options: argparse.Namespace) -> None:
    from experiments.report import pages

    written = pages.write()
    print(*(path.relative_to(repository_root()) for path in written), f"{len(written)} files written", sep="\n")


def update_golden(options: argparse.Namespace) -> None:
    from experiments.analysis.saving import damage, table_paths
    from experiments.report import regression

    build, published = repository_root() / "build" / "quick", repository_root() / "results" / "quick"
    names = _selected(options.notebooks, saves=True)
    absent = [name for name in names if all(damage(folder / f"{name}.csv") for folder in (build, published))]
    if absent:  # before anything is replaced
        raise FileNotFoundError(f"no tables of {', '.join(absent)}; make results ONLY={','.join(absent)}")
    built = {path.stem for path in table_paths(build)}  # what is damaged among them is refused there
    if made := [name for name in names if name in built]:
        regression.publish(build, published, made, everything=True)
    regression.accept(names)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--version", action="version", version=f"dmlrepro {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    actions: dict[str, Any] = {"required": True, "metavar": "ACTION"}
    data = _add(commands, "data", "check or fetch a dataset").add_subparsers(**actions)
    command = _command(data, "check", data_check, "print the counts of a dataset, and decode all its images")
    command.add_argument("name", help="a set's name, or folder:PATH or manifest:FILE.csv for your own images")
    command = _command(data, "fetch", data_fetch, "download a dataset, or print the manual steps")
    command.add_argument("name", help="a set's name")

    _command(commands, "params", shared_parameters, "list the parameters that every notebook accepts")

    purpose = "train what notebooks run without Jupyter, into the cache, and beyond quick into the record of results/"
    command = _command(commands, "train", train, purpose)
    _notebooks(command)
    _parameters(command)
    command.add_argument("--grid", type=Path, help="executions.json of the workflow; then NOTEBOOKS are names in it")
    command.add_argument("--seed", type=int, help="only the runs of this seed")
    command.add_argument("--rerun", action="store_true", help="also what the store has; new lines are appended")
    command.add_argument("--jobs", type=int, help="one-thread runs side by side (default: all cores, on GPUs 1)")

    command = _command(commands, "tune", tune, "tune methods on validation classes, with equal budgets, into results/")
    what = "notebooks (name or number), methods, or both: then these methods of them"
    command.add_argument("what", nargs="+", help=what)
    _parameters(command, profile="small")
    command.add_argument("--jobs", type=int, help="searches side by side, each on one thread (default: all cores)")
    command.add_argument("--again", action="store_true", help="also where there is one, which it then replaces")

    record = _add(commands, "records", "the finished runs that results/ stores").add_subparsers(**actions)
    _command(record, "status", records_status, "print how many runs are valid and outdated; trains nothing")
    command = _command(record, "check", records_check, "train a sample of the stored runs again and compare them")
    command.add_argument("kinds", nargs="*", help="parts of names that `records status` prints (default: all)")
    command.add_argument("--sample", type=int, default=2, help="runs of each kind (default: 2)")
    command.add_argument("--jobs", type=int, help="as in `train`")

    purpose = "print every setting of a notebook's runs, where it comes from, and about how long they take"
    command = _command(commands, "config", config, purpose)
    command.add_argument("notebook", help="name or number")
    _parameters(command)

    command = _command(commands, "publish", publish, "move validated tables from a build folder to results/")
    command.add_argument("folder", type=Path, help="of a build, as build/quick")
    _notebooks(command)
    purpose = "also what repeats the committed tables, with its costs"
    command.add_argument("--everything", action="store_true", help=purpose)
    command = _command(commands, "summary", summary, "table of a build folder: notebook, seconds, rows")
    command.add_argument("folder", type=Path, help="of a build, as build/quick")
    _command(commands, "report", report, "fill the tables of pages and notebooks, write results/claims.csv")
    purpose = "make new golden values from build/quick or results/quick, print what moved"
    _notebooks(_command(commands, "update-golden", update_golden, purpose))
    return parser


def _add(commands: argparse._SubParsersAction, name: str, purpose: str) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")


def _command(commands: argparse._SubParsersAction, name: str, run: Callable, purpose: str) -> argparse.ArgumentParser:
    parser = _add(commands, name, purpose)
    parser.set_defaults(run=run)
    return parser


def _notebooks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebooks", nargs="*", help="names or numbers; default: all")


def _parameters(parser: argparse.ArgumentParser, profile: str = "quick") -> None:
    parser.add_argument("--profile", default=profile, help=f"quick, small or paper (default: {profile})")
    how: dict[str, Any] = {"nargs": 2, "action": "append", "default": [], "metavar": ("NAME", "VALUE")}
    how["help"] = "a parameter of the notebooks, as in papermill; repeatable"
    parser.add_argument("-p", dest="parameters", **how)
