"""SIGKILLs of `python -m experiments train`: what comes of it has to be the bytes of an undisturbed run.

Every training is killed at a random moment of the time that an undisturbed one takes, imports included, and started
again until one gets through; then the cache is emptied and it begins anew.
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
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BRIEFLY = "-p seeds 1 -p steps"
KINDS = {
    "folds": "10 -p protocol mlrc -p methods ['ProxyNCA++'] --jobs 2 " + f"{BRIEFLY} 12",
    "neighbours": "10 -p protocol stml -p image_size 24 -p methods ['ProxyAnchor'] --jobs 1 " + f"{BRIEFLY} 80",
    "nivMF": "20 -p methods ['nivMF','EL-nivMF'] --jobs 1 " + f"{BRIEFLY} 40",
}


# the command, with a checkpoint every second
COMMAND = """
import sys
from experiments import cli
from experiments.training import loop

loop.CHECKPOINT_SECONDS = 1
sys.exit(cli.main())
"""


def train(kind: str, cache: Path) -> subprocess.Popen:
    environment = {"PYTHONPATH": str(ROOT), "DMLREPRO_CACHE": str(cache)}
    how = {"cwd": ROOT, "env": os.environ | environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([sys.executable, "-c", COMMAND, "train", *KINDS[kind].split()], **how, text=True)


def finish(process: subprocess.Popen) -> str:
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
    """Checkpoints and temporary things that a finished command has no use for; files of locks stay."""
    kept = [*cache.glob("checkpoints/*"), *cache.glob("*/.*")]
    return [str(path.relative_to(cache)) for path in kept if not re.match(r"\.dmlrepro-|.*\.lock$", path.name)]


def rounds(kind: str, kills: int, generator: random.Random) -> dict[str, int]:
    """Kill training `kills` times; returns how often it was killed, and finished."""
    counted = {"kills": 0, "finished": 0}
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_killed_training_ends_with_the_bytes_of_undisturbed_training(kind):
    counted = rounds(kind, 2, random.Random(0))
    assert counted["kills"] == 2 and counted["finished"] >= 1
