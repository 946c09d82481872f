"""Training what is missing into the cache: side by side, or one after the other. Each run has one device."""

import functools
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

import torch

from experiments import progress
from experiments.files import FullDisk, cache_root
from experiments.training import cache, keys, loop
from experiments.training.device import repeatable
from experiments.training.spec import RunSpec

KILLED = (
    "its process was killed, most likely for lack of memory: lower batch_size; or a script trains outside of "
    '`if __name__ == "__main__":`, and each process ran it anew'
)
FEWER_AT_ONCE = "run fewer at once (`train --jobs 1`, fewer cores for `make`), or lower batch_size or image_size"


def train(
    missing: Mapping[str, tuple[dict, RunSpec]], jobs: int | None, keep: Callable[[str], None]
) -> dict[str, Exception]:
    """Train runs and return what hindered those that fail, by key.

    Specs that ask for one thread are trained side by side in `jobs` processes (None: on CUDA one after the other, else
    the cores this process may use); others one after the other.

    Args:
        missing: identity (`keys.identity_of`) and spec by key.
        keep: called with the key of each run that is in the cache now.

    Raises:
        FullDisk: at once, and what is being trained is ended, because it would be trained for nothing.
    """
    together = jobs is not None or not torch.cuda.is_available()  # not all at once into a GPU's memory, unless told to
    parallel = [key for key, (_, spec) in missing.items() if spec.threads == 1 and together]
    workers = workers_for(jobs, len(parallel))
    failures: dict[str, Exception | None] = {}
    report = progress.reporter("runs trained", len(missing))

    def finish(key: str, train: Callable[[], object]) -> None:
        failures[key] = failure_of(train, functools.partial(keep, key))
        now()

    def now() -> None:
        report(len(failures))

    def in_processes(some: Iterable[str], workers: int) -> None:
        side_by_side({key: functools.partial(train_into_cache, *missing[key]) for key in some}, workers, finish, now)

    if workers > 1:
        in_processes(parallel, workers)
        # where memory is short the system kills a process, and its pool ends with it: one at a time they may all fit
        for key in [key for key, error in failures.items() if isinstance(error, BrokenProcessPool)]:
            in_processes([key], 1)
            if isinstance(failures[key], BrokenProcessPool):
                failures[key] = MemoryError(KILLED)
    for key, (identity, spec) in missing.items():
        if workers <= 1 or key not in parallel:
            described = f"{spec.loss or 'untrained'} seed {spec.seed}"
            finish(key, functools.partial(train_into_cache, identity, spec, described))
    return {key: error for key, error in failures.items() if error}


def workers_for(jobs: int | None, count: int) -> int:
    """How many processes share so much work: `jobs` at most, or one per core that this process may use."""
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}; None: one per core")
    return min(jobs or len(os.sched_getaffinity(0)), count)


def side_by_side(
    tasks: Mapping[str, Callable[[], object]],
    workers: int,
    finish: Callable[[str, Callable[[], object]], None],
    report: Callable[[], None],
) -> None:
    """Do named tasks in processes of one thread. `finish` gets the name of each that ends and a function that gives its
    result or raises its error; `report` is called every half minute. An error of `finish` ends all."""
    others = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        waiting = {pool.submit(task): name for name, task in tasks.items()}
        try:
            while waiting:
                for future in wait(waiting, timeout=progress.EVERY, return_when=FIRST_COMPLETED).done:
                    finish(waiting.pop(future), future.result)
                report()
        except BaseException as error:
            if isinstance(error, FullDisk):  # the pool would begin those that it has handed out
                for process in set(multiprocessing.active_children()) - set(others):
                    process.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def failure_of(*steps: Callable[[], object]) -> Exception | None:
    """What hinders one of some steps, but for a full disk, which hinders all other work too and is raised."""
    try:
        for step in steps:
            step()
    except FullDisk:
        raise
    except Exception as error:
        traceback.clear_frames(error.__traceback__)  # they hold the run's tensors, which the next run has to fit
        return error
    return None


def _start_worker() -> None:
    """One thread per worker, and none outlives a killed notebook."""
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
    os._exit(1)


def train_into_cache(identity: dict[str, dict], spec: RunSpec, described: str | None = None) -> None:
    """Train a run if the cache does not have it; described: what a log calls it.

    identity: of `keys.identity_of`, from the process that asked for the run: this one may see other threads.
    """
    key, threads = keys.of_identity(identity), torch.get_num_threads()
    if cache.folder_of(key).exists():  # another process was faster
        return
    checkpoint = cache_root() / "checkpoints" / f"{key}.pt"
    torch.set_num_threads(spec.threads or threads)
    try:
        with repeatable(), torch.enable_grad():  # a run may be asked for where nothing else needs gradients
            outcome = loop.train(spec, checkpoint=checkpoint, progress=described)
        cache.store(identity, spec, outcome)
        checkpoint.unlink(missing_ok=True)  # no sooner: storing may fail
        return
    except (RuntimeError, MemoryError) as error:  # on CPUs torch's allocator says it in words
        on_gpu = isinstance(error, torch.OutOfMemoryError)
        if not on_gpu and not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        reason = str(error).partition(". ")[0]
    finally:
        torch.set_num_threads(threads)
    # not while the error is held, whose frames hold the run's tensors
    if on_gpu:
        torch.cuda.empty_cache()
        raise MemoryError(f"out of GPU memory ({reason}); lower batch_size or image_size, or precision = 'bfloat16'")
    raise MemoryError(f"out of memory ({reason}); {FEWER_AT_ONCE}")
