"""Runs are functions of their spec: equal twice, cached by content, exact after an interruption."""

import hashlib
import multiprocessing
import os
import resource
import shutil
import signal
import time
import warnings
from contextlib import contextmanager

import psutil
import pytest
import torch
from tiny import TINY

from experiments.files import FullDisk
from experiments.networks import backbones
from experiments.training import keys, loop, runs, scheduling
from experiments.training.device import repeatable
from experiments.training.spec import RunSpec


def test_a_run_is_trained_once(empty_cache, monkeypatch):
    with torch.no_grad():  # where it is asked for does not matter
        first = runs.run(TINY)
    monkeypatch.setattr(loop, "train", lambda *a, **k: pytest.fail("trained again"))
    again = runs.run(TINY.replace(method="another label"))
    assert (first.from_cache, again.from_cache) == (False, True)
    assert first.rows == again.rows
    assert again.network()(torch.zeros(2, 1, 32, 32, dtype=torch.uint8)).shape == (2, 8)


train_into_cache = runs.train_into_cache


def _dies_with_seed_0(key, spec, *_):
    if spec.seed == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    train_into_cache(key, spec)


def test_runs_that_fail_stop_no_other_and_are_listed_at_the_end(empty_cache, monkeypatch):
    specs = [TINY, TINY.replace(lr=1e30, seed=1, method="Fast"), TINY.replace(seed=2)]
    with monkeypatch.context() as deadly, pytest.raises(MemoryError) as failed:
        deadly.setattr(runs, "train_into_cache", _dies_with_seed_0)  # pickled by name: workers have the true one
        runs.run_all(specs, jobs=2)
    heading, killed, diverged, _ = str(failed.value).splitlines()
    assert heading == "2 of 3 runs failed, the others are finished and in the cache:"
    assert "seed 0: its process was killed, most likely for lack of memory" in killed
    assert diverged.startswith("  Fast glyphs seed 1: ") and "lower lr or loss_lr" in diverged
    finished = runs.run(specs[2])
    assert finished.from_cache and finished.rows == loop.train(specs[2]).rows


def test_the_error_has_the_type_of_what_is_no_divergence(empty_cache):
    too_many = TINY.replace(batch_size=10**6, method="Large")
    with pytest.raises(ValueError, match=r"2 of 2 runs failed(.|\n)*seed 1: batch_size 1000000 is larger than"):
        runs.run_all([TINY.replace(lr=1e30), too_many.replace(seed=1)], jobs=1)
    with pytest.raises(FloatingPointError, match="2 of 2 runs failed"):
        runs.run_all([TINY.replace(lr=1e30), TINY.replace(lr=1e30, seed=1)], jobs=1)
    with pytest.raises(FloatingPointError, match=r"^(the loss|training|the embeddings)"):  # alone, it speaks for itself
        runs.run(TINY.replace(lr=1e30))


@pytest.mark.parametrize(
    "error, message",
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), r"\(CUDA out of memory\).*bfloat16"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes"), "memory .*--jobs 1"),
        (MemoryError("Unable to allocate 3 TiB"), "^out of memory .*batch_size"),
        (RuntimeError("shapes differ"), "^shapes differ$"),
    ],
)
def test_out_of_memory_is_one_line_with_the_remedy(empty_cache, monkeypatch, error, message):
    monkeypatch.setattr(loop, "train", lambda *_, **__: (_ for _ in ()).throw(error))
    with pytest.raises(RuntimeError if "shapes" in message else MemoryError, match=message) as raised:
        runs.run(TINY)
    assert "\n" not in str(raised.value)


def test_the_key_depends_on_what_matters_and_not_on_a_field_that_asks_for_nothing(monkeypatch):
    key, as_dict = keys.key_of(TINY), RunSpec.as_dict
    assert keys.key_of(TINY.replace(method="label", setting="x=1")) == key
    for change in ({"seed": 1}, {"lr": 2e-3}, {"loss_options": {"temperature": 0.2}}, {"label_noise": 0.1}):
        assert keys.key_of(TINY.replace(**change)) != key
    for value in (None, False, {}, ()):
        monkeypatch.setattr(RunSpec, "as_dict", lambda spec, value=value: as_dict(spec) | {"later": value})
        assert keys.key_of(TINY) == key
    monkeypatch.setattr(RunSpec, "as_dict", lambda spec: as_dict(spec) | {"later": 0})
    assert keys.key_of(TINY) != key


def test_a_checkpoint_stays_until_its_run_is_stored(empty_cache, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    checkpoint = empty_cache / "checkpoints" / f"{keys.key_of(TINY)}.pt"
    with monkeypatch.context() as full_disk:
        full_disk.setattr(runs, "save_file", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
        with pytest.raises(OSError, match="no space left"):
            runs.run(TINY)
    assert checkpoint.exists() and not list((empty_cache / "runs").iterdir())
    assert runs.run(TINY).losses.isfinite().all()
    assert not checkpoint.exists()


@contextmanager
def files_no_larger_than(size):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_ends_a_study_at_its_first_error(empty_cache):
    loop.train(TINY)
    for_minutes = [TINY.replace(seed=seed, steps=100_000) for seed in (1, 2, 3)]
    with files_no_larger_than(4000), pytest.raises(FullDisk, match=f"cannot write to {empty_cache}/runs"):
        runs.run_all([TINY, *for_minutes], jobs=2)
    assert multiprocessing.active_children() == []
    assert not list(empty_cache.glob("runs/*-*"))


@pytest.mark.parametrize("checkpoint_seconds", [300, 0], ids=["the run", "its checkpoint"])
def test_a_full_disk_is_one_line_with_the_remedy_and_leaves_nothing(empty_cache, monkeypatch, checkpoint_seconds):
    """A limit on the size of files stands for it: a write fails likewise after a part of the file."""
    loop.train(TINY)  # its images are rendered
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", checkpoint_seconds)
    part = "runs" if checkpoint_seconds else "checkpoints"
    message = f"cannot write to {empty_cache}/{part} .*: free space there, or set DMLREPRO_CACHE"
    with files_no_larger_than(4000), pytest.raises(FullDisk, match=message):
        runs.run(TINY)
    assert not [*empty_cache.glob("runs/*"), *empty_cache.glob("checkpoints/*")]  # hidden ones included
    assert not runs.run(TINY).from_cache


def _train_forever(cache):
    os.environ["DMLREPRO_CACHE"] = cache
    runs.run_all([TINY.replace(steps=100_000), TINY.replace(steps=100_000, seed=1)], jobs=2)


def test_a_killed_notebook_leaves_no_result_and_no_worker(empty_cache):
    parent = multiprocessing.get_context("spawn").Process(target=_train_forever, args=(str(empty_cache),))
    parent.start()
    try:
        deadline = time.monotonic() + 120
        while len(workers := psutil.Process(parent.pid).children()) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.join()
    assert len(workers) == 2
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert alive == []
    assert list((empty_cache / "runs").glob("*/result.json")) == []


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA X")


def test_on_gpus_training_is_repeatable_and_torch_is_left_as_it_was(two_gpus, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that what is set here does not stay
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    with pytest.raises(FloatingPointError), repeatable():
        assert torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.allow_tf32
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        raise FloatingPointError
    assert not torch.are_deterministic_algorithms_enabled() and torch.backends.cudnn.allow_tf32
    torch.set_deterministic_debug_mode("warn")
    try:
        with repeatable():
            pass
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.set_deterministic_debug_mode("default")


def test_on_gpus_small_runs_go_side_by_side_where_jobs_say_how_many_and_keys_do_not_depend_on_threads(
    two_gpus, monkeypatch
):
    before = keys.key_of(TINY.replace(threads=None))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert keys.key_of(TINY.replace(threads=None)) == before
    asked = []

    def do_all(parallel, alone, workers, *_):
        asked.append((len(parallel), len(alone), workers))
        return {key: ValueError("not trained") for key in parallel | alone}

    monkeypatch.setattr(scheduling, "do_all", do_all)
    small = [TINY.replace(seed=seed, lr=1e-9) for seed in range(3)]
    for jobs in (None, 2):
        with pytest.raises(ValueError, match="not trained"):
            runs.run_all([*small, small[0].replace(threads=None)], jobs=jobs)
    assert asked == [(0, 4, 0), (3, 1, 2)]


def test_a_damaged_run_is_refused_by_name_until_it_is_removed(empty_cache):
    whole = runs.run(TINY)
    os.truncate(whole.folder / "arrays.safetensors", 99)
    with pytest.raises(ValueError, match=f"{whole.key} is damaged .arrays.safetensors: not what.*remove it"):
        runs.run(TINY)
    shutil.rmtree(whole.folder)
    again = runs.run(TINY)
    assert again.rows == whole.rows and not again.from_cache
    assert torch.equal(again.embeddings, loop.train(TINY).embeddings[""])


def test_two_files_for_one_tag_are_two_keys(empty_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path))
    spec = TINY.replace(backbone="squeezenet1_1", weights="imagenet")
    downloaded = keys.key_of(spec)
    file = tmp_path / "weights" / "squeezenet1_1_in1k.safetensors"
    file.parent.mkdir()
    edited = []
    for content in (b"some weights", b"others"):
        file.write_bytes(content)
        with pytest.warns(UserWarning, match=rf"{file} has sha256 {hashlib.sha256(content).hexdigest()}.*not known"):
            edited.append(keys.key_of(spec))
    assert len({downloaded, *edited}) == 3
    assert keys.identity_of(spec)["what"]["weights"] == hashlib.sha256(b"others").hexdigest()
    assert keys.key_of(TINY) == keys.key_of(TINY.replace(weights=None))


def test_known_weights_do_not_warn(tmp_path, monkeypatch):
    """Our list has them, or the name of torch's own file has their first digits."""
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path))
    (tmp_path / "weights").mkdir()
    own, torchs = backbones.KNOWN_WEIGHTS["squeezenet1_1_in1k.safetensors"], f"b8a52dc0{0:056}"
    for name, digest in (("squeezenet1_1-b8a52dc0.pth", torchs), ("squeezenet1_1_in1k.safetensors", own)):
        (tmp_path / "weights" / name).touch()
        monkeypatch.setattr(backbones, "sha256_once", lambda file, digest=digest: digest)
        with warnings.catch_warnings(action="error"):
            assert backbones.weights_digest("squeezenet1_1", "imagenet") == digest
