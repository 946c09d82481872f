"""python -m dmlrepro: data, backbones, training without Jupyter, the cache, search in your own images with a trained
network, and what the Makefile and the workflow call.
"""

import argparse
import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dmlrepro import __version__

if TYPE_CHECKING:
    from dmlrepro.papers.params import Params


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return options.run(options) or 0
    except ModuleNotFoundError as error:
        if (error.name or "dmlrepro").startswith("dmlrepro"):
            raise  # a mistake of ours, not a package of an extra
        print(f"dmlrepro: {error.name} is not installed; pip install 'dmlrepro[notebooks]'", file=sys.stderr)
        return 2
    except (ValueError, TypeError, OSError, FloatingPointError, MemoryError) as error:
        print(f"dmlrepro: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dmlrepro", description=__doc__)
    parser.add_argument("--version", action="version", version=f"dmlrepro {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    data = _group(commands, "data", "check or fetch a dataset")
    check = _command(data, "check", _data_check, "print the counts of a dataset, and decode all its images")
    check.add_argument("name", help="a set's name, or folder:PATH or manifest:FILE.csv for your own images")
    check.add_argument(
        "--csv", type=Path, help="also write the images and their split to this new file, for manifest:FILE.csv"
    )
    fetch = _command(data, "fetch", _data_fetch, "download a dataset, or print the manual steps")
    fetch.add_argument("name")

    _command(commands, "backbones", _backbones, "list the backbones with weight tag, input and users")
    _command(commands, "params", _shared_parameters, "list the parameters that every notebook accepts")

    train = _command(commands, "train", _train, "search and train what notebooks run, into the cache, without Jupyter")
    _notebooks(train)
    _parameters(train)
    train.add_argument("--grid", type=Path, help="executions.json of the workflow; then NOTEBOOKS are names in it")
    train.add_argument("--jobs", type=int, help="one-thread runs side by side (default: all cores)")

    search = _command(commands, "search", _search, "tune methods alike on validation classes, into results/; resumes")
    search.add_argument("what", nargs="+", help="notebooks, by name or number, and methods; without a notebook: of any")
    _parameters(search)
    search.add_argument("--jobs", type=int, help="searches side by side, each on one thread (default: all cores)")
    search.add_argument("--again", action="store_true", help="also where there is one, which it replaces when complete")

    bench = _command(commands, "bench", _bench, "check a loss of your own and compare it with all others; resumes")
    bench.add_argument("loss", help="FILE.py:NAME or package.module:NAME, see docs/your_loss.md")
    bench.add_argument("--profile", help="default: the first of quick, small and paper that has the data set")
    bench.add_argument("--dataset", help="as in notebooks (default: that of the profile)")
    bench.add_argument("--search", nargs="+", default=[], metavar="NAME=LOW:HIGH", help="options to search, at small")
    bench.add_argument("-p", dest="parameters", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    bench.add_argument("--jobs", type=int, help="as in `train`")

    record = _group(commands, "records", "the finished runs that results/ keeps, and the code that trained them")
    _command(record, "status", _records_status, "print how many runs are current, accepted and stale; trains nothing")
    check = _command(
        record, "check", _records_check, "train a sample of the stale runs again: accept their code if it is as good"
    )
    check.add_argument("--jobs", type=int, help="as in `train`")
    renew = _command(record, "renew", _records_renew, "train the stale runs again, in the place of what is on record")
    _notebooks(renew)
    renew.add_argument("--jobs", type=int, help="as in `train`")

    jobs = _command(commands, "jobs", _jobs, "write what a workflow needs to train each run as a job of its own")
    jobs.add_argument("grid", type=Path, help="executions.json of the workflow")
    jobs.add_argument("index", type=Path, help="a JSON file to write; the spec of each run goes beside it")
    jobs.add_argument("--cores", type=int, default=1, help="threads of a run that does not say how many (default: 1)")
    jobs.add_argument("--gpus", type=int, default=0, help="so many share each run (default: none is used)")
    run = _command(commands, "run", _run, "train one run that `jobs` wrote, into the cache")
    run.add_argument("spec", type=Path)

    plan = _command(commands, "plan", _plan, "list the runs of notebooks with estimated hours and memory; runs nothing")
    _notebooks(plan)
    _parameters(plan)
    plan.add_argument("--each", action="store_true", help="a line per run instead of one per method")
    plan.add_argument("--gpus", type=int, help="so many share each run (default: those of this machine)")
    plan.add_argument("--measure", action="store_true", help="time a step and an evaluation of each kind of run here")
    show = _command(commands, "show", _show, "print every setting of a notebook's runs and where it comes from")
    show.add_argument("notebook", help="name or number")
    _parameters(show)

    cache = _group(commands, "cache", "move finished runs between machines")
    for action in ("export", "import"):
        entry = _command(cache, action, _cache)
        entry.add_argument("archive", type=Path)
        entry.set_defaults(action=action)

    export = _command(commands, "export", _export, "keep a trained network as a file: of notebook 01 the recommended")
    export.add_argument("notebook", help="name or number, as in 01")
    export.add_argument(
        "model", type=Path, help="the file to write, .safetensors; where torch can, also .pt2 beside it"
    )
    export.add_argument("--method", help="whose network (default: the one that notebook 01 recommends)")
    export.add_argument("--seed", type=int, default=0, help="with --method (default: 0)")
    _parameters(export)
    embed = _command(commands, "embed", _embed, "embed all images of a folder into an index; goes on where it stopped")
    embed.add_argument("model", type=Path, help="a file that `export` wrote")
    embed.add_argument("folder", type=Path, help="images at any depth, sorted by class or not")
    embed.add_argument("--out", type=Path, required=True, help="the index, a folder")
    find = _command(commands, "find", _find, "find the images of an index that are nearest to yours, as CSV")
    find.add_argument("index", type=Path, help="a folder that `embed` wrote")
    find.add_argument("images", type=Path, nargs="+", help="image files, or folders of them")
    find.add_argument("-k", type=int, default=10, help="how many for each image (default: 10)")
    find.add_argument("--html", type=Path, help="write a page of pictures instead, to read offline")

    publish = _command(commands, "publish", _publish, "move validated tables from a build folder to results/")
    publish.add_argument("folder", type=Path)
    publish.add_argument(
        "--everything", action="store_true", help="also what repeats the committed tables, with its costs"
    )
    summary = _command(commands, "summary", _summary, "table of a build folder: notebook, seconds, rows, verdicts")
    summary.add_argument("folder", type=Path)
    drift = _command(commands, "drift", _drift, "print how far new tables of a folder lie from the golden values")
    drift.add_argument("folder", type=Path)
    _notebooks(drift)
    _command(commands, "pages", _pages, "write what is made from results/: findings, index, ledger, README")
    _notebooks(_command(commands, "accept", _accept, "make new golden numbers from results/quick, print what moved"))
    return parser


def _group(commands: argparse._SubParsersAction, name: str, said: str):
    return commands.add_parser(name, help=said).add_subparsers(required=True, metavar="ACTION")


def _command(
    commands: argparse._SubParsersAction, name: str, run: Callable, said: str | None = None
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=said) if said else commands.add_parser(name)
    parser.set_defaults(run=run)
    return parser


def _notebooks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebooks", nargs="*", help="names or numbers; default: all")


def _parameters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", default="quick")
    parser.add_argument(
        "-p", dest="parameters", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="as in papermill"
    )


def _params(options: argparse.Namespace, params_class: "type[Params]"):
    values = {name: _literal(text) for name, text in options.parameters}
    return params_class.from_values({"profile": options.profile} | values)


def _literal(text: str):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _selected(names: list[str]) -> list[str]:
    from dmlrepro.desk import catalogue

    return [catalogue.find(name).name for name in names] or list(catalogue.studies())


def _data_check(options: argparse.Namespace) -> None:
    from dmlrepro.datasets import images, manifests, own_images

    print(manifests.check(options.name))
    manifest = manifests.present(options.name)
    if isinstance(manifest.images, tuple):
        print(images.survey(manifest))
        images.check(manifest)
    if options.csv:
        own_images.write_csv(manifest, options.csv)


def _data_fetch(options: argparse.Namespace) -> None:
    from dmlrepro.datasets import downloads

    downloads.fetch(options.name)


def _backbones(options: argparse.Namespace) -> None:
    import pandas as pd

    from dmlrepro.networks import backbones

    print(pd.DataFrame(backbones.table()).to_string(index=False))


def _shared_parameters(options: argparse.Namespace) -> None:
    import inspect

    from dmlrepro.papers.params import Params

    print(inspect.getdoc(Params))


def _train(options: argparse.Namespace) -> None:
    from dmlrepro.desk import jobs
    from dmlrepro.files import FullDisk
    from dmlrepro.training import records, runs

    pooled: list = []
    results: list = []
    failures = []
    for execution in jobs.of_grid(options.grid, options.notebooks) if options.grid else _chosen(options):
        specs = execution.study.specs(execution.params)
        if not records.file_of(execution.params.profile, execution.study.name):
            pooled += specs
            continue
        try:
            results += execution.run(specs, options.jobs)
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


def _records_status(options: argparse.Namespace) -> None:
    import pandas as pd

    from dmlrepro.training import checking

    found = pd.DataFrame(checking.states())
    print(found.to_string(index=False) if len(found) else "no runs on record")


def _records_check(options: argparse.Namespace) -> int:
    from dmlrepro.desk import searches
    from dmlrepro.training import checking

    others = searches.outdated()
    for table, files in others.items():
        print(f"results/{table} rests on another search than {', '.join(files)} is now: make it again")
    found = checking.check(options.jobs)
    for row in found:
        trained = f"{row['trained']} of {row['runs']} stale runs trained again"
        print(f"{row['kind']}: {trained}, {'refused: ' + row['differ'] if row['differ'] else 'as they were'}")
    refused = any(row["differ"] for row in found)
    print("nothing is stale" if not found else "`records renew` trains what was refused" if refused else "accepted")
    return 1 if refused or others else 0


def _records_renew(options: argparse.Namespace) -> None:
    from dmlrepro.desk import catalogue
    from dmlrepro.training import checking

    names = _selected(options.notebooks) if options.notebooks else ()
    print(f"{checking.renew(names, options.jobs, catalogue.measure)} runs trained again")


def _search(options: argparse.Namespace) -> None:
    import pandas as pd

    from dmlrepro.desk import catalogue, searches
    from dmlrepro.papers import rooms
    from dmlrepro.papers.methods import summary

    methods = [name for name in options.what if name in rooms.methods()]
    named = [catalogue.find(name) for name in options.what if name not in methods]
    # the notebooks across papers, 00 to 03, come last: a room knows its methods' parameters
    everything = sorted(catalogue.studies().items(), key=lambda item: (item[0].startswith("0"), item[0]))
    every = searches.wanted(named or [study for _, study in everything], lambda cls: _params(options, cls), methods)
    found = searches.run(every, options.jobs, options.again)
    rows = [{"method": each["method"]} | summary(each) for each in found]
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.4g}".format, na_rep=""))
    for table, files in searches.outdated().items():
        print(f"results/{table} was made with another {' and '.join(files)}: execute its notebook again")


def _bench(options: argparse.Namespace) -> None:
    from dmlrepro.desk import bench

    values = {name: _literal(text) for name, text in options.parameters} | {"search": options.search}
    params = bench.params_of(options.loss, options.profile, options.dataset, **values)
    findings = bench.checked(params)
    print(*findings, sep="\n", flush=True)
    path, said = bench.page(params, findings, options.jobs)
    print(*said, f"the page: {path}", sep="\n")


def _chosen(options: argparse.Namespace):
    """Studies with the parameters of the command line."""
    from dmlrepro.desk import catalogue
    from dmlrepro.papers.study import Execution

    for study in map(catalogue.find, _selected(options.notebooks)):
        yield Execution(study, _params(options, study.params))


def _jobs(options: argparse.Namespace) -> None:
    from dmlrepro.desk import jobs
    from dmlrepro.evidence import saving

    grid = jobs.executions(options.grid)
    specs, index = jobs.expand(grid["executions"], grid["profile"], cores=options.cores, gpus=options.gpus)
    for key, spec in specs.items():
        path = options.index.parent / f"{key}.json"
        if not path.exists():  # its name is its content
            saving.write_text(path, json.dumps(spec, indent=1) + "\n")
    saving.write_text(options.index, json.dumps(index, indent=1) + "\n")
    print(f"{len(index['executions'])} executions of notebooks read {len(specs)} distinct runs")


def _run(options: argparse.Namespace) -> None:
    from dmlrepro.desk import jobs
    from dmlrepro.training import runs

    result = jobs.train(options.spec)
    print(f"{runs.named(result.spec)}: {'in the cache' if result.from_cache else 'trained'}, {result.key}")


def _plan(options: argparse.Namespace) -> int:
    import torch

    from dmlrepro.desk import catalogue, plan, stopwatch, throughput

    gpus = options.gpus or torch.cuda.device_count() or 1
    speed = stopwatch.measured if options.measure else throughput.stated
    names = _selected(options.notebooks)
    table, problems = plan.table_of(names, lambda cls: _params(options, cls), gpus=gpus, speed=speed)
    if table.empty:
        print("these notebooks train nothing")
        return 0
    print((table if options.each else plan.grouped(table)).to_string(index=False, float_format="{:.3g}".format))
    print(plan.by_notebook(table).to_string(index=False, float_format="{:.3g}".format))
    print(*plan.totals(table, gpus), sep="\n")
    said = [plan.recorded(name, _params(options, catalogue.find(name).params)) for name in names]
    said.append(plan.searching(names, lambda cls: _params(options, cls), speed))
    for each in filter(None, said):
        print(each)
    print(*(f"error: {problem}" for problem in problems), sep="\n", end="\n" * bool(problems), file=sys.stderr)
    return 1 if problems else 0


def _show(options: argparse.Namespace) -> None:
    from dmlrepro.desk import catalogue, show

    study = catalogue.find(options.notebook)
    print(show.text(study, _params(options, study.params)))


def _cache(options: argparse.Namespace) -> None:
    from dmlrepro.training import cache

    if options.action == "export":
        print(f"{cache.export_to(options.archive)} runs written to {options.archive}")
    else:
        print(f"{cache.import_from(options.archive)} runs added to the cache")


def _export(options: argparse.Namespace) -> None:
    from dmlrepro.deploy import models
    from dmlrepro.desk import catalogue, kept
    from dmlrepro.papers.study import Execution

    study = catalogue.find(options.notebook)
    models.check_name(options.model)
    run = kept.chosen(Execution(study, _params(options, study.params)), options.method, options.seed)
    print(f"# {run.described}", models.lines(models.export(run, options.model)), sep="\n")


def _embed(options: argparse.Namespace) -> None:
    from dmlrepro.deploy import indexing

    index = indexing.embed_folder(options.model, options.folder, options.out)
    unreadable = f"; {index.unreadable} others: {options.out / 'unreadable.txt'}" if index.unreadable else ""
    print(f"{len(index.images)} images in {options.out}{unreadable}")


def _find(options: argparse.Namespace) -> int:
    from dmlrepro.deploy import finding, page

    found = finding.find(options.index, options.images, options.k)
    print(*found.unreadable, sep="\n", end="\n" * bool(found.unreadable), file=sys.stderr)
    if options.html:
        print(f"{len(found.queries)} queries in {page.write(found, options.html)}")
    else:
        found.write_csv(sys.stdout)
    return 1 if found.unreadable else 0


def _publish(options: argparse.Namespace) -> None:
    from dmlrepro.desk import verdicts
    from dmlrepro.evidence import publishing
    from dmlrepro.files import repository_root

    target = _published(options.folder)
    tables, moved = publishing.publish(options.folder, target, everything=options.everything)
    print(f"{tables} tables valid, {moved} new or changed in {target.relative_to(repository_root())}/")
    if verdicts.write():
        print("results/claims.csv follows them")


def _published(build: Path) -> Path:
    """Where the tables of a build folder go."""
    from dmlrepro.files import repository_root

    return repository_root() / "results" / build.name


def _summary(options: argparse.Namespace) -> int:
    """What the notebooks of a build folder took and said; 1 where committed tables are not what they make."""
    from dmlrepro.desk import regression
    from dmlrepro.evidence import publishing

    table = regression.summary(options.folder)
    print(table.to_string(index=False))
    print(f"{len(table)} notebooks, {table['rows'].sum()} rows, {table['verdicts'].sum()} verdicts")
    if difference := publishing.difference(options.folder, _published(options.folder)):
        print(difference)
    return _name_outdated(options.folder, _published(options.folder))


def _name_outdated(made: Path, committed: Path) -> int:
    """Print which committed tables are not what the present code makes; 1 if there are any."""
    from dmlrepro.evidence import publishing
    from dmlrepro.files import repository_root

    found = publishing.outdated(made, committed)
    for name, why in found.items():
        print(f"{committed.relative_to(repository_root())}/{name}.csv is not what the present code makes: {why}")
    if found:
        print("if that is meant, `make accept` (golden values too) or `make notebooks` renew what is committed")
    return 1 if found else 0


def _drift(options: argparse.Namespace) -> int:
    from dmlrepro.desk import regression
    from dmlrepro.files import repository_root

    table, outside = regression.drift(options.folder, _selected(options.notebooks))
    if table.empty:
        print("these notebooks have no golden values")
        return 0
    print(table.to_string(index=False, float_format="{:.2f}".format))
    print(f"{table['moved'].sum()} of {table['values'].sum()} values moved, {len(outside)} outside their tolerance")
    if len(outside):
        print(outside.to_string(index=False))
    outdated = _name_outdated(options.folder, repository_root() / "results" / "quick")
    return 1 if len(outside) else outdated


def _pages(options: argparse.Namespace) -> None:
    from dmlrepro.desk import pages
    from dmlrepro.files import repository_root

    written = pages.write()
    print(*(path.relative_to(repository_root()) for path in written), f"{len(written)} files written", sep="\n")


def _accept(options: argparse.Namespace) -> None:
    from dmlrepro.desk import catalogue, regression
    from dmlrepro.evidence import publishing
    from dmlrepro.evidence.provenance import damage
    from dmlrepro.files import repository_root

    build = repository_root() / "build" / "quick"
    names = [name for name in _selected(options.notebooks) if catalogue.find(name).saves]
    absent = [name for name in names if all(damage(each / f"{name}.csv") for each in (build, _published(build)))]
    if absent:  # before anything is replaced
        raise FileNotFoundError(f"no tables of {', '.join(absent)}; make results ONLY={','.join(absent)}")
    publishing.publish(build, _published(build), everything=True)
    regression.accept(names)


if __name__ == "__main__":
    sys.exit(main())
