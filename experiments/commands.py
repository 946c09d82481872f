"""What the commands of `python -m experiments` do, each from its options, see cli.py; what a command returns is its
exit status, None: 0.

They import what they need themselves, so that the others need not wait for it.
"""

import argparse
import ast
import contextlib
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.study import Execution, Study
    from experiments.training.spec import RunSpec


def _params(options: argparse.Namespace, study: "Study"):
    values: dict[str, Any] = {"profile": options.profile} | dict(options.parameters)
    for name, text in options.parameters:
        with contextlib.suppress(ValueError, SyntaxError):
            values[name] = ast.literal_eval(text)
    return study.configured(values)


def _selected(names: list[str]) -> list[str]:
    from experiments.report import catalogue

    return [catalogue.find(name).name for name in names] or list(catalogue.studies())


def data_check(options: argparse.Namespace) -> None:
    from experiments.datasets import images, manifests

    print(manifests.check(options.name))
    manifest, _ = manifests.present(options.name)
    if isinstance(manifest.images, tuple):
        print(images.check(manifest))


def data_fetch(options: argparse.Namespace) -> None:
    from experiments.datasets import downloads

    downloads.fetch(options.name)


def data_convert(options: argparse.Namespace) -> None:
    from experiments.networks import convert

    print(convert.convert(options.wheel))


def backbones(options: argparse.Namespace) -> None:
    import pandas as pd

    from experiments.networks import backbones

    print(pd.DataFrame(backbones.table()).to_string(index=False))


def shared_parameters(options: argparse.Namespace) -> None:
    import inspect

    from experiments.params import Params

    print(inspect.getdoc(Params))


def train(options: argparse.Namespace) -> None:
    from experiments.files import FullDisk
    from experiments.training import records, runs

    pooled: list[RunSpec] = []
    results: list[runs.RunResult] = []
    failures = []
    for execution in _executions(options):
        every = execution.study.specs(execution.params)
        specs = [spec for spec in every if options.seed in (None, spec.seed)]
        if not records.file_of(execution.params.profile, execution.study.name):
            pooled += specs
            continue
        try:
            results += execution.run(specs, options.jobs, rerun=options.rerun)
        except FullDisk:
            raise
        except Exception as error:  # the other notebooks are trained before it is said
            failures.append(error)
            print(f"{execution.study.name}: {error}", file=sys.stderr)
    results += runs.run_all(pooled, jobs=options.jobs)
    if failures:
        raise failures[0]
    fresh = {result.key for result in results if not result.from_cache}
    distinct = len({result.key for result in results})
    print(f"{distinct} distinct runs of {len(results)}: {len(fresh)} trained now, the others were finished")


def _executions(options: argparse.Namespace) -> Iterator["Execution"]:
    """Studies with the parameters of the command line, or of executions of the workflow."""
    from experiments.files import read_json
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
    import pandas as pd

    from experiments.training import checking

    states = pd.DataFrame(checking.states())
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
    methods = [name for name in options.what if name in known]
    for name in options.what:
        if alike := name not in known and difflib.get_close_matches(name, known, cutoff=0.7):
            raise ValueError(f"no method {name!r}; did you mean {alike[0]!r}?")
    named = [catalogue.find(name) for name in options.what if name not in methods]
    # the notebooks across papers, 00 to 03, come last: a room knows its methods' parameters
    everything = sorted(catalogue.studies().items(), key=lambda item: (item[0].startswith("0"), item[0]))
    every = searches.wanted(named or [study for _, study in everything], lambda study: _params(options, study), methods)
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
    from experiments.analysis import publishing, saving
    from experiments.files import repository_root
    from experiments.report import verdicts

    target = _published(options.folder)
    if target.name not in saving.PROFILES:
        known = ", ".join(saving.PROFILES)
        raise ValueError(f"{options.folder} is no folder of a profile ({known}), as build/quick is; give such a one")
    names = _saving(options.notebooks) if options.notebooks else []
    if options.notebooks and not names:
        print("these notebooks save no table")
        return
    tables, moved = publishing.publish(options.folder, target, names, everything=options.everything)
    print(f"{tables} tables valid, {moved} new or changed in {target.relative_to(repository_root())}/")
    if verdicts.write():
        print("results/claims.csv follows them")


def _saving(names: list[str]) -> list[str]:
    """Those of some notebooks, or of all, that save a table."""
    from experiments.report import catalogue

    return [name for name in _selected(names) if catalogue.find(name).saves]


def _published(build: Path) -> Path:
    """Where the tables of a build folder go."""
    from experiments.files import repository_root

    return repository_root() / "results" / build.absolute().name


def summary(options: argparse.Namespace) -> int:
    """What the notebooks of a build folder took; of notebooks that are named, how far their tables lie from
    the golden values. 1 where a value is outside its tolerance, or a committed table is not what they make."""
    from experiments.analysis import publishing
    from experiments.files import repository_root
    from experiments.report import regression

    committed, outside = _published(options.folder), 0
    if options.notebooks:
        committed = repository_root() / "results" / "quick"
        values = regression.drift(options.folder, _selected(options.notebooks))
        beyond, moved = values[~(values["moved"] <= values["tolerance"])], (values["moved"] > 1e-6).sum()
        outside = len(beyond)
        print(f"{moved} of {len(values)} golden values moved, {outside} beyond their tolerance")
        if outside:
            print(beyond.to_string(index=False))
    else:
        table = regression.summary(options.folder)
        print(table.to_string(index=False))
        print(f"{len(table)} notebooks, {table['rows'].sum()} rows")
        if difference := publishing.difference(options.folder, committed):
            print(difference)
    reasons = publishing.outdated(options.folder, committed)
    for name, why in reasons.items():
        print(f"{committed.relative_to(repository_root())}/{name}.csv is not what the present code makes: {why}")
    if reasons:
        print("if that is meant, `make update-golden` or `make notebooks` renew what is committed")
    return 1 if outside or reasons else 0


def report(options: argparse.Namespace) -> None:
    from experiments.files import repository_root
    from experiments.report import pages

    written = pages.write()
    print(*(path.relative_to(repository_root()) for path in written), f"{len(written)} files written", sep="\n")


def update_golden(options: argparse.Namespace) -> None:
    from experiments.analysis import publishing
    from experiments.analysis.provenance import damage, table_paths
    from experiments.files import repository_root
    from experiments.report import regression

    build = repository_root() / "build" / "quick"
    names = _saving(options.notebooks)
    absent = [name for name in names if all(damage(folder / f"{name}.csv") for folder in (build, _published(build)))]
    if absent:  # before anything is replaced
        raise FileNotFoundError(f"no tables of {', '.join(absent)}; make results ONLY={','.join(absent)}")
    built = {path.stem for path in table_paths(build)}  # what is damaged among them is refused there
    if made := [name for name in names if name in built]:
        publishing.publish(build, _published(build), made, everything=True)
    regression.accept(names)
