"""A SLURM cluster on the loopback of one machine: to try the profile workflow/profiles/slurm, and to test it.

    sudo .venv/bin/python tests/slurm/cluster.py install    # Debian and Ubuntu: slurmctld, slurmd, the commands, munge
    .venv/bin/python tests/slurm/cluster.py snakemake --config train=jobs notebooks=00,23

The second starts a cluster, runs Snakemake on it with the profile and these arguments, and ends it. Two nodes, `left`
and `right`, share the machine. Each has two cores and one GPU, a generic resource behind which there is no device.
Everything runs as the user who asks and lies in one temporary folder: nothing is configured, and nothing remains.
"""

import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PROFILE = Path(__file__).parents[2] / "workflow" / "profiles" / "slurm"
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
NODES = ("left", "right")
MARK = "DMLREPRO_SLURM"  # environment variable of all processes of a cluster: its folder
CONFIGURATION = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
# cgroups need a hierarchy of their own, which containers lack
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
# two nodes may have more cores and memory than the machine
SlurmdParameters=config_overrides
# squeue shows finished jobs for an hour; a node that is silent for ten seconds is lost, and comes back when it speaks
MinJobAge=3600
SlurmdTimeout=10
ReturnToService=2
KillWait=2
SchedulerParameters=batch_sched_delay=0
NodeName=left NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=16000 Gres=gpu:1
NodeName=right NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=16000 Gres=gpu:1
PartitionName=all Nodes=left,right Default=YES MaxTime=INFINITE State=UP
"""
GENERIC_RESOURCES = "NodeName=left,right Name=gpu File=/dev/null\n"


@dataclass
class Cluster:
    """A running cluster: its folder, the environment in which its commands find it, and its daemons by name."""

    folder: Path
    environment: dict[str, str]
    daemons: dict[str, subprocess.Popen] = field(default_factory=dict)

    def run(self, *command: str) -> str:
        """What a command that succeeds has printed, e.g. run("squeue", "--states=all")."""
        return subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True).stdout

    def start(self, name: str, daemon: str, *options: str) -> None:
        """A daemon that ends with this process, even if that is killed."""
        command = [found("setpriv"), "--pdeathsig=KILL", found(daemon), *options]
        with (self.folder / f"{name}.out").open("w") as out:
            self.daemons[name] = subprocess.Popen(
                command, env=self.environment, stdout=out, stderr=out, start_new_session=True
            )

    def start_node(self, name: str) -> None:
        self.start(name, "slurmd", "-D", "-N", name)

    def lose_node(self, name: str) -> None:
        """End a node's daemon and all that it started at once, as a power cut does."""
        daemon = self.daemons.pop(name)
        daemon.kill()
        daemon.wait()
        end(self.processes_of(name))

    def processes_of(self, *nodes: str) -> list[psutil.Process]:
        """The processes of all jobs on these nodes. SLURM's own come first, or they would report the end of others."""
        jobs, keepers = [], []
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # it has ended, or belongs to somebody else
                environment = process.environ()
                if environment.get(MARK) == str(self.folder) and environment.get("SLURMD_NODENAME") in nodes:
                    jobs.append(process)
                    keepers += [parent for parent in process.parents() if parent.name().startswith("slurmstepd")]
        return [*dict.fromkeys(keepers), *jobs]

    def ready(self) -> bool:
        """Whether every node waits for jobs."""
        try:
            return self.run("sinfo", "--noheader", "--Node", "--format=%t").split() == ["idle"] * len(NODES)
        except subprocess.CalledProcessError:  # slurmctld does not listen yet
            return False


def end(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=10)


def found(name: str) -> str:
    """The path of a daemon. Those of the system are not on every user's PATH."""
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if path is None:
        raise FileNotFoundError(f"{name} is not installed: run `sudo {sys.executable} {__file__} install`")
    return path


def installed() -> bool:
    try:
        return all(map(found, ("munged", "slurmctld", "slurmd", "sbatch")))
    except FileNotFoundError:
        return False


def snakemake(*arguments: str) -> list[str]:
    """The command that runs a workflow with the profile on this cluster, which has no accounts and no accounting."""
    asks = ["--slurm-no-account", "--slurm-status-command", "squeue"]
    often = ["--slurm-init-seconds-before-status-checks", "2", "--seconds-between-status-checks", "2"]
    return [sys.executable, "-m", "snakemake", "--profile", str(PROFILE), *asks, *often, *arguments]


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def wait_for(condition, what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not after {seconds:.0f} seconds")
        time.sleep(0.2)


@contextmanager
def running() -> Iterator[Cluster]:
    """A cluster with two idle nodes. What it logged is printed if the block, or its own start, fails."""
    with tempfile.TemporaryDirectory(prefix="dmlrepro-slurm-") as name:
        folder = Path(name)
        (folder / "state").mkdir()
        (folder / "munge.key").touch(0o600)
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=socket.gethostname().split(".")[0],
                ports=free_ports(3),
                user=getpass.getuser(),
                folder=folder,
            )
        )
        (folder / "gres.conf").write_text(GENERIC_RESOURCES)
        # Snakemake's jobs call srun without the variables of SLURM, by which this cluster is found
        (folder / "bin").mkdir()
        (folder / "bin" / "srun").touch(0o755)
        (folder / "bin" / "srun").write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {found("srun")} "$@"\n')
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        cluster = Cluster(folder, os.environ | {"PATH": path, MARK: name, "SLURM_CONF": str(folder / "slurm.conf")})
        try:
            files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
            options = [f"--{option}={folder}/munge.{ending}" for option, ending in files.items()]
            cluster.start("munged", "munged", "--foreground", "--force", *options)
            wait_for((folder / "munge.socket").exists, "munged listens")
            cluster.start("slurmctld", "slurmctld", "-D")
            for node in NODES:
                cluster.start_node(node)
            wait_for(cluster.ready, "both nodes are idle")
            yield cluster
        except BaseException:
            for path in sorted(folder.glob("*.log")):
                print(f"{path.name}:", *path.read_text(errors="replace").splitlines()[-15:], sep="\n", file=sys.stderr)
            raise
        finally:
            daemons = [psutil.Process(daemon.pid) for daemon in cluster.daemons.values() if daemon.poll() is None]
            end([*cluster.processes_of(*NODES), *daemons])


def main(what: str, *arguments: str) -> int:
    if what == "install":
        subprocess.run(["apt-get", "update"], check=True)
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES]
        return subprocess.run(install, env=quiet).returncode
    if what == "required":
        return (
            0 if installed() else sys.exit(f"not tested: SLURM is not here; sudo {sys.executable} {__file__} install")
        )
    if what != "snakemake":
        raise SystemExit(__doc__)
    with running() as cluster:
        return subprocess.run(snakemake(*arguments), env=cluster.environment).returncode


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or ["help"])))
