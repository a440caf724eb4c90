"""The command ``perdure``. It adds ``perdure launch``, for Python programs, to the perdure program."""

from __future__ import annotations

import glob
import importlib
import importlib.util
import os
import runpy
import shlex
import socket
import sys

from . import _agent, _island, _nested, _warm
from .errors import UsageError
from .progress import NO_END

LAUNCH = """usage: perdure launch --nproc N [flags of perdure up, or --join HOST:PORT] [--] PROGRAM.py [its arguments]

Start PROGRAM.py in N slots of a job on this machine, with a coordinator and servers. Processes that die are restarted.
Each process has RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and the variables GROUP_… and ROLE_…, as with torchrun;
RANK is its slot. MASTER_ADDR is not set: processes communicate through the servers, not through one of them.
The job ends when its programs end it, or after --clocks iterations (default: without limit).

  perdure launch --nproc 4 --servers 2 --recovery resend:auto train.py --epochs 3

With --preload MODULE,… a slot's process imports these modules, then forks the program. If the program is killed, it is
forked again without repeating the imports, which often are the slowest part of a restart:

  perdure launch --nproc 4 --preload torch,torch._dynamo,perdure.torch train.py

With --nproc-per-learner R a slot is an island of R ranks, which form a process group of torch.distributed and train one
model by DDP or FSDP2. RANK and WORLD_SIZE are those within the island, and MASTER_ADDR and MASTER_PORT are set. If a
rank dies, its island is restarted. Sizes may differ: --nproc-per-learner 4,2

  perdure launch --nproc 8 --nproc-per-learner 4 train.py

With --join HOST:PORT the programs take slots of a job on several machines, whose coordinator is there. The flags are
then those of perdure host, and each program gets RANK and WORLD_SIZE from perdure.start(). Without --nproc, their
number is that of PET_NPROC_PER_NODE, which Kubeflow Trainer sets, or 1:

  perdure launch --nproc 4 --join 10.0.0.5:7000 --keys keys --notice 25s train.py
"""

#: The first argument of a slot's command, after ``python -m perdure``.
_AS_SLOT = "--as-slot-of"


def main() -> None:
    """Run the command line."""
    try:
        match sys.argv[1:]:
            case ["launch", *rest]:
                launch(rest)
            case [flag, processes, modules, program, *rest] if flag == _AS_SLOT:
                as_slot(processes, modules, program, rest)
            case rest:
                _agent.become(_agent.binary(), rest)
    except UsageError as error:
        print(f"perdure: {error}", file=sys.stderr)
        sys.exit(2)


def launch(args: list[str]) -> None:
    """Replace this process with ``perdure up`` or ``perdure host``, which start the program."""
    if not args or args[0] in ("-h", "--help"):
        print(LAUNCH, end="")
        return
    processes, ranks, modules, flags = "", "", "", []
    while args and args[0].startswith("-"):
        flag, has, value = args.pop(0).partition("=")
        if flag == "--":
            break
        if not has and args and not args[0].startswith("-") and not args[0].endswith(".py"):
            value, has = args.pop(0), "="
        if flag == "--nproc":
            processes = value
        elif flag == "--nproc-per-learner":
            ranks = value or "0"
        elif flag == "--preload":
            modules = value or ","  # "," names no module, so the check below fails
        else:
            flags.append(flag + has + value)
    if not args:
        raise UsageError("launch: missing program; give its file after the flags")
    if _island.TORCHRUN in os.environ:
        raise UsageError("launch: torchrun has started this command; run perdure launch without torchrun")
    given = {flag.split("=")[0] for flag in flags}
    if not processes and "--join" in given:
        processes = _of_node()
    sizes = _sizes(processes, ranks) if ranks else []
    own = [("--nproc", processes), ("--nproc-per-learner", ranks), ("--preload", modules)]
    again = [word for flag, value in own if value for word in (flag, value)]
    processes = processes or "1"
    if not processes.isdecimal() or int(processes) < 1:
        raise UsageError(f"launch: invalid --nproc {processes}: give the number of processes, 1 or more")
    if not os.path.isfile(args[0]):
        raise UsageError(f"launch: file {args[0]} does not exist; name the program's file after the flags")
    sys.path[0] = os.path.dirname(os.path.abspath(args[0]))  # as in a slot
    for module in modules.split(",") if modules else ():
        try:
            known = importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            known = False
        if not known:
            raise UsageError(f"launch: --preload {module}: this module does not exist; install it, or correct the name")
    slots = str(len(sizes)) if sizes else processes
    of = ":" + ",".join(map(str, sizes)) if sizes else processes
    command = [sys.executable, "-m", "perdure", _AS_SLOT, of, modules, *args]
    if "--join" in given:
        if "SLURM_NODEID" in os.environ and "--dir" not in given:  # nodes usually share the working directory
            flags.append(f"--dir=perdure-host-{os.environ['SLURM_NODEID']}")
        _agent.become(_agent.binary(), ["host", "--workers", slots, *flags, "--", *command])
    if not any(flag.split("=")[0] in ("--clocks", "--from", "--resume", "-f") for flag in flags):
        flags.append(f"--clocks={NO_END}")  # the programs end the job when they are done
    os.environ["PERDURE_LAUNCH"] = shlex.join([*again, *args])  # for the line that says how to resume the run
    _agent.become(_agent.binary(), ["up", "--workers", slots, *flags, "--exec", shlex.join(command)])


def _of_node() -> str:
    """Return the number of processes per node that Kubeflow Trainer sets for torchrun, or an empty string."""
    named = os.environ.get("PET_NPROC_PER_NODE", "")
    if named in ("auto", "gpu"):
        return str(len(_devices()) or 1)
    return named if named.isdecimal() else ""


def _sizes(processes: str, ranks: str) -> list[int]:
    """Return the number of ranks of each island."""
    try:
        sizes = [int(size) for size in ranks.split(",")]
        total = int(processes) if processes else sum(sizes)
    except ValueError:
        sizes, total = [], 0
    if not sizes or min(sizes) < 1 or total < 1:
        raise UsageError(
            f"launch: invalid --nproc-per-learner {ranks} or --nproc {processes}: give the number of ranks of each "
            "learner, such as 4 or 4,2, and the number of all processes"
        )
    if len(sizes) == 1:
        sizes *= total // sizes[0]
    if sum(sizes) != total:
        raise UsageError(
            f"launch: --nproc {processes} processes cannot be divided into learners of {ranks}; list the size of each "
            "learner, such as --nproc-per-learner 4,2"
        )
    return sizes


def as_slot(processes: str, modules: str, program: str, args: list[str]) -> None:
    """Run a program in this process, which ``perdure up`` or a host has started. With modules, run it in a fork.

    Args:
        processes: The number of slots on this machine, or a colon and the number of ranks of each island.
        modules: The modules to import before the fork.
        program: The program's file.
        args: Its arguments.
    """
    hosted = "PERDURE_SLOT" not in os.environ  # the job assigns a slot in perdure.start()
    slot = int(os.environ.get("LOCAL_RANK" if hosted else "PERDURE_SLOT", "0"))
    sizes = [int(size) for size in processes[1:].split(",")] if processes.startswith(":") else []
    if not sizes:
        if not hosted:
            _set_ranks(slot, int(processes))
        _nested.explain()
    sys.argv = [program, *args]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    size = sizes[min(slot, len(sizes) - 1)] if sizes else 0  # perdure scale may have added the slot
    if size:
        _set_devices(sum(sizes[:slot]), size, sum(sizes))
    if modules:
        for module in modules.split(","):
            importlib.import_module(module)
    if size:
        _warm.fork(program, size, lambda rank: _set_island(rank, size))
    elif modules:
        _warm.fork(program)
    runpy.run_path(program, run_name="__main__")


def _set_ranks(rank: int, size: int) -> None:
    """Set torchrun's variables for one machine, except MASTER_ADDR and MASTER_PORT."""
    os.environ.update(RANK=f"{rank}", LOCAL_RANK=f"{rank}", ROLE_RANK=f"{rank}", GROUP_RANK="0", ROLE_NAME="default")
    os.environ.update(WORLD_SIZE=f"{size}", LOCAL_WORLD_SIZE=f"{size}", ROLE_WORLD_SIZE=f"{size}", GROUP_WORLD_SIZE="1")


def _set_island(rank: int, size: int) -> None:
    """Prepare the next incarnation of an island, with a rendezvous of its own (rank -1), or one of its ranks."""
    if rank >= 0:
        _set_ranks(rank, size)
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the name of this machine may have no address
    os.environ[_island.VARIABLE] = os.environ["MASTER_PORT"]


def _devices() -> list[str]:
    """Return the GPUs that this process may use."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(len(glob.glob("/dev/nvidia[0-9]*")))]


def _set_devices(first: int, size: int, total: int) -> None:
    """Show only an island's own GPUs to its ranks, if there is one for each rank of the job on this machine."""
    devices = _devices()
    if len(devices) >= max(total, first + size):
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices[first : first + size])


if __name__ == "__main__":
    main()
