"""A real Slurm on this machine for one test session: a controller, one node with two GPUs that do not exist.

Everything but /etc/slurm, where programs inside a job look, lies in one folder. Where /etc/slurm has a configuration,
the machine belongs to a cluster and is left alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

ETC = Path("/etc/slurm")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
CONFIG = """\
ClusterName=normbench
SlurmctldHost={host}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d.log
SlurmctldPort={port}
SlurmdPort={node_port}
SlurmdTimeout=30
SlurmdParameters=config_overrides
KillWait=2
OverTimeLimit=0
JobRequeue=0
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=1,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=32000 Gres=gpu:faked_a:1,gpu:faked_b:1 State=UNKNOWN
PartitionName=gpu Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
GRES = """\
NodeName={host} Name=gpu Type=faked_a Flags=nvidia_gpu_env File={folder}/gpu0
NodeName={host} Name=gpu Type=faked_b Flags=nvidia_gpu_env File={folder}/gpu1
"""


def missing() -> str | None:
    """Why Slurm cannot be started here, or None."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if absent:
        return f"no {absent[0]} here; install the Debian packages slurmctld slurmd munge"
    if os.geteuid() != 0:
        return "only root can start Slurm's daemons"
    if shutil.which("rsync") is None:
        return "no rsync here, which the storage plugin `fs` copies with"
    if (ETC / "slurm.conf").exists():
        return f"{ETC} has a configuration: this machine belongs to a cluster"
    return None


class Slurm:
    """The daemons, as children of this process; ``stop`` ends those and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = socket.gethostname().split(".")[0]
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for name in ("spool", "state"):
            (self.folder / name).mkdir(parents=True)
        for number in range(2):
            os.mknod(self.folder / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))  # what /dev/null is
        names = {"host": self.host, "folder": self.folder}
        names |= {"port": _free_port(), "node_port": _free_port()}
        ETC.mkdir(exist_ok=True)
        (ETC / "slurm.conf").write_text(CONFIG.format(**names))
        (ETC / "gres.conf").write_text(GRES.format(**names))
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = {name: self.folder / f"munge.{name.removesuffix('-file')}" for name in ("log-file", "pid-file")}
        options = [f"--{name}={path}" for name, path in files.items()]
        socket_file = self.folder / "munge.socket"
        seed = self.folder / "munge.seed"
        self._daemon(
            "munged", "-F", "-f", f"--key-file={key}", f"--socket={socket_file}", f"--seed-file={seed}", *options
        )
        wait_for(socket_file.exists, 10, "munged does not answer")
        self._daemon("slurmctld", "-D", "-c")
        self.start_node()

    def start_node(self) -> None:
        """Start the node's daemon, also after it died."""
        self._daemon("slurmd", "-D")
        wait_for(lambda: self.ask("sinfo", "-h", "-o", "%T") in ("idle", "mixed"), 30, "the node is not idle")

    def kill_node(self) -> None:
        """The node dies with all that runs on it, and the controller notices."""
        for process in self.daemons["slurmd"], *self._jobs():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, 9)
        self.daemons.pop("slurmd").wait()
        self.order("scontrol", "update", f"nodename={self.host}", "state=down", "reason=died")

    def _jobs(self) -> list[object]:
        """Processes of running jobs: step daemons, of which there are none but this node's (see ``missing``), and what
        they started."""
        import psutil

        steps = [one for one in psutil.process_iter(["name"]) if one.info["name"].startswith("slurmstepd")]
        return [process for step in steps for process in (step, *step.children(recursive=True))]

    def stop(self) -> None:
        if "slurmctld" in self.daemons:
            self.ask("scancel", "--user=root")
            with contextlib.suppress(AssertionError):
                wait_for(lambda: not self.ask("squeue", "-h"), 20, "jobs do not end")
        for name in ("slurmd", "slurmctld", "munged"):
            if daemon := self.daemons.pop(name, None):
                daemon.terminate()
                try:
                    daemon.wait(20)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
        for name in ("slurm.conf", "gres.conf"):
            (ETC / name).unlink(missing_ok=True)

    def state(self) -> str:
        """Jobs, node, daemons' last words and every process of a job: what a test that waited in vain shows."""
        asked = (("squeue", "--states=all"), ("scontrol", "show", "node"), ("scontrol", "show", "job"))
        told = [self.ask(*command) for command in asked]
        for log in ("ctld.log", "d.log"):
            path = self.folder / log
            told.append("\n".join(path.read_text().splitlines()[-40:]) if path.exists() else f"no {log}")
        told.append(self.ask("ps", "-eo", "pid,ppid,pgid,stat,etimes,args"))
        return "\n\n".join(told)

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout.strip()

    def order(self, *command: str) -> None:
        """What Slurm refuses fails here and at once; a test that went on would wait for what nobody told it to do."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"

    def _daemon(self, program: str, *arguments: str) -> None:
        path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
        assert path is not None
        with (self.folder / f"{program}.out").open("ab") as out:
            self.daemons[program] = subprocess.Popen([path, *arguments], stdout=out, stderr=out)


def wait_for(condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
