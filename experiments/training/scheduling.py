"""Named tasks, side by side in processes or one after the other: one that fails does not stop the others."""

import functools
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from experiments.files import FullDisk

KILLED = (
    "its process was killed, most likely for lack of memory: lower batch_size; or a script trains outside of "
    '`if __name__ == "__main__":`, and each process ran it anew'
)
Task = Callable[[], object]
Tasks = Mapping[str, Task]


def do_all(
    parallel: Tasks, alone: Tasks, workers: int, keep: Callable[[str], None], report: Callable[[int], None]
) -> dict[str, Exception]:
    """Do tasks and return what hindered those that fail, by name.

    Args:
        parallel: those for `workers` processes of one thread. alone: those that follow in this process.
        keep: called here with the name of each that is done; what it raises counts as that task's failure.
        report: called with the number of tasks that have ended, at each end.

    Raises:
        FullDisk: at once, and what is being done is ended, because it would be done for nothing.
    """
    failures: dict[str, Exception | None] = {}  # by name, of each that has ended

    def finish(name: str, task: Task) -> None:
        failures[name] = failure_of(task, functools.partial(keep, name))
        report(len(failures))

    if parallel:
        _side_by_side(parallel, workers, finish)
    # where memory is short the system kills a process, and its pool ends with it: one at a time they may all fit
    for name in [name for name, error in failures.items() if isinstance(error, BrokenProcessPool)]:
        _side_by_side({name: parallel[name]}, 1, finish)
        if isinstance(failures[name], BrokenProcessPool):
            failures[name] = MemoryError(KILLED)
    for name, task in alone.items():
        finish(name, task)
    return {name: error for name, error in failures.items() if error}


def workers_for(jobs: int | None, count: int) -> int:
    """How many processes share so much work: `jobs` at most, or one per core that this process may use."""
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}; None: one per core")
    return min(jobs or len(os.sched_getaffinity(0)), count)


def failure_of(*steps: Task) -> Exception | None:
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


def _side_by_side(tasks: Tasks, workers: int, finish: Callable[[str, Task], None]) -> None:
    """`finish` gets the name of each that ends and a function that raises its error; an error of `finish` ends all."""
    others, context = multiprocessing.active_children(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        names = {pool.submit(task): name for name, task in tasks.items()}
        try:
            for future in as_completed(names):
                finish(names[future], future.result)
        except BaseException:
            for process in set(multiprocessing.active_children()) - set(others):
                process.terminate()  # else the pool would begin those that it has handed out
            pool.shutdown(cancel_futures=True)
            raise


def _start_worker() -> None:
    """One thread per worker, and none outlives a killed notebook."""
    torch.set_num_threads(1)
    parent: Any = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
