"""What each process of a run on several GPUs does; `distributed.launch` starts it with what the run is.

It lies apart from distributed.py, so that the training loop does not import the cache whose keys hold its own source.
"""

import json
import os
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from experiments.training import scheduling
from experiments.training.spec import RunSpec


@record  # torchrun then reports the traceback of the rank that failed first
def main(identity: str, spec: str, parent: str) -> None:
    """Train a run, given as JSON, and put it into the cache; end with the process `parent`."""
    threading.Thread(target=_die_with, args=(int(parent),), daemon=True).start()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # the others wait while the first rank decodes the images of a large set
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=timedelta(hours=3))
    scheduling.train_and_store(json.loads(identity), RunSpec(**json.loads(spec)))
    dist.destroy_process_group()  # not after an error, when it would wait for ranks that wait for this one


def _die_with(process: int) -> None:
    """torchrun outlives a killed notebook; a rank that leaves ends it and the other ranks."""
    while True:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            os._exit(1)
        time.sleep(2)


if __name__ == "__main__":
    main(*sys.argv[1:])
