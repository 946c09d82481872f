"""SIGKILLs of `python -m experiments train`, and of `make results`: what comes of it has to be the bytes of an
undisturbed run.

    PYTHONPATH=. python tests/kills.py 100          # of training, all kinds together
    PYTHONPATH=. python tests/kills.py 30 folds
    PYTHONPATH=. python tests/kills.py 11 builds

Every training is killed at a random moment of the time that an undisturbed one takes, imports included, and started
again until one gets through; then the cache is emptied and it begins anew. A build is killed at points equally far from
each other: all its processes, the first alone, which leaves orphans, or any one. Its cache stays.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
BRIEFLY = "-p seeds 1 -p steps"
KINDS = {
    "folds": "10 -p protocol mlrc -p methods ['ProxyNCA++'] --jobs 2 " + f"{BRIEFLY} 12",
    "neighbours": "10 -p protocol stml -p image_size 24 -p methods ['ProxyAnchor'] --jobs 1 " + f"{BRIEFLY} 80",
    "nivMF": "20 -p methods ['nivMF','EL-nivMF'] --jobs 1 " + f"{BRIEFLY} 40",
}
BUILDS = "builds"
BUILT = "23_nivmf_normalizer,51_plm_supervision_quality"  # seconds each


def started(folder: Path, cache: Path, *arguments: str) -> subprocess.Popen:
    """A process of Python in a folder with the code."""
    environment = {"PYTHONPATH": str(folder), "DMLREPRO_CACHE": str(cache), "DMLREPRO_CHECKPOINT_SECONDS": "1"}
    how = {"cwd": folder, "env": os.environ | environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([sys.executable, *arguments], **how, text=True)


def train(kind: str, cache: Path) -> subprocess.Popen:
    return started(ROOT, cache, "-m", "experiments", "train", *KINDS[kind].split())


def finish(process: subprocess.Popen) -> str:
    """What a process that succeeds has printed."""
    printed = process.communicate()[0]
    assert process.returncode == 0, printed
    return printed


def outcome(cache: Path) -> dict[str, bytes]:
    """The bytes of all that finished runs consist of, but for the seconds they took."""
    contents = {}
    for path in sorted((cache / "runs").glob("*/*")):
        name = str(path.relative_to(cache))
        if path.suffix == ".safetensors":
            contents[name] = path.read_bytes()
        elif path.name == "result.json":
            record = json.loads(path.read_bytes())
            contents[name] = json.dumps({what: record[what] for what in ("what", "where", "dataset", "rows")}).encode()
    return contents


def left_over(cache: Path) -> list[str]:
    """Checkpoints and temporary or damaged things that a finished command has no use for; files of locks stay."""
    kept = [*cache.glob("checkpoints/*"), *cache.glob("*/.*"), *cache.glob("*/*.damaged*")]
    return [str(path.relative_to(cache)) for path in kept if not re.match(r"\.dmlrepro-|.*\.lock$", path.name)]


def rounds(kind: str, kills: int, generator: random.Random) -> dict[str, int]:
    """Kill training `kills` times; returns how often it was killed, how often with a checkpoint, and finished."""
    counted = {"kills": 0, "with a checkpoint": 0, "finished": 0}
    with tempfile.TemporaryDirectory() as folder:
        cache, disturbed = Path(folder, "undisturbed"), Path(folder, "disturbed")
        began = time.monotonic()
        finish(train(kind, cache))
        seconds, expected = time.monotonic() - began, outcome(cache)
        assert expected
        shutil.copytree(cache, disturbed, ignore=shutil.ignore_patterns("runs"))
        while counted["kills"] < kills:
            process = train(kind, disturbed)
            try:
                process.wait(generator.uniform(0, seconds))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                counted["kills"] += 1
                counted["with a checkpoint"] += any((disturbed / "checkpoints").glob("*.pt"))
                print(kind, counted, file=sys.stderr, flush=True)
                continue
            compare(finish(process), disturbed, expected)
            counted["finished"] += 1
            shutil.rmtree(disturbed / "runs")
        compare(finish(train(kind, disturbed)), disturbed, expected)
        counted["finished"] += 1
    return counted


def compare(printed: str, cache: Path, expected: dict[str, bytes]) -> None:
    assert outcome(cache) == expected, printed
    assert not left_over(cache), (left_over(cache), printed)
    assert "damaged" not in printed, printed  # a kill alone never leaves a damaged file


def build(repository: Path) -> subprocess.Popen:
    return started(repository, repository / ".cache", "workflow/build.py", "quick", BUILT)


def strike(process: subprocess.Popen, generator: random.Random) -> None:
    first = psutil.Process(process.pid)
    tree = [first, *first.children(recursive=True)]
    for struck in generator.choice([tree, [first], [generator.choice(tree)]]):
        with suppress(psutil.NoSuchProcess):
            struck.kill()


def published(repository: Path) -> dict[str, bytes]:
    """The tables in results/, but for those of costs, which are seconds."""
    tables = sorted((repository / "results").rglob("*.csv"))
    return {path.name: path.read_bytes() for path in tables if not path.name.endswith(".cost.csv")}


def builds(kills: int, generator: random.Random) -> int:
    """Kill a build at so many points of the time that an undisturbed one takes, each time finish it, and compare."""
    with tempfile.TemporaryDirectory() as name:  # a copy of this repository without results
        folder = Path(name)
        for part in ("dmlrepro", "experiments", "workflow", "data", "notebooks"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        finish(build(folder))  # fills the cache
        expected = published(folder)
        assert set(expected) == {"claims.csv", "comparisons.csv", *(f"{name}.csv" for name in BUILT.split(","))}
        clear(folder)
        began = time.monotonic()
        finish(build(folder))
        seconds = time.monotonic() - began
        for number in range(kills):
            clear(folder)
            process = build(folder)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds * (number + 0.5) / (kills + 1))
            assert process.poll() is None, "it ended before it was killed"
            strike(process, generator)
            printed = process.communicate()[0]
            assert set(published(folder).items()) <= set(expected.items()), printed  # nothing half, nothing wrong
            printed = finish(build(folder))
            assert published(folder) == expected, printed
            print(f"{BUILDS}: killed {number + 1} of {kills}, and finished", file=sys.stderr, flush=True)
    return kills


def clear(repository: Path) -> None:
    for part in ("build/quick", "results"):
        shutil.rmtree(repository / part, ignore_errors=True)


if __name__ == "__main__":
    kinds = sys.argv[2:] or list(KINDS)
    if kinds == [BUILDS]:
        print(f"{BUILDS}: {builds(int(sys.argv[1]), random.Random(BUILDS))} kills, the same tables after each")
        sys.exit()
    for number, kind in enumerate(kinds):
        share = int(sys.argv[1]) // len(kinds) + (number < int(sys.argv[1]) % len(kinds))
        print(f"{kind}: {rounds(kind, share, random.Random(kind))}", flush=True)
