"""The command ``perdure``. It adds ``perdure launch``, for Python programs, to the perdure program."""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import shlex
import sys

from . import _agent, _nested, _warm
from .errors import UsageError
from .progress import NO_END

LAUNCH = """usage: perdure launch --nproc N [flags of perdure up] [--] PROGRAM.py [its arguments]

Start PROGRAM.py in N slots of a job on this machine, with a coordinator and servers. Processes that die are restarted.
Each process has RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and the variables GROUP_… and ROLE_…, as with torchrun;
RANK is its slot. MASTER_ADDR is not set: processes communicate through the servers, not through one of them.
The job ends when its programs end it, or after --clocks iterations (default: without limit).

  perdure launch --nproc 4 --servers 2 --recovery resend:auto train.py --epochs 3

With --preload MODULE,… a slot's process imports these modules, then forks the program. If the program is killed, it is
forked again without repeating the imports, which often are the slowest part of a restart:

  perdure launch --nproc 4 --preload torch,torch._dynamo,perdure.torch train.py
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
    """Replace this process with ``perdure up``, which starts the program."""
    if not args or args[0] in ("-h", "--help"):
        print(LAUNCH, end="")
        return
    processes, modules, flags = "1", "", []
    while args and args[0].startswith("-"):
        flag, has, value = args.pop(0).partition("=")
        if flag == "--":
            break
        if not has and args and not args[0].startswith("-") and not args[0].endswith(".py"):
            value, has = args.pop(0), "="
        if flag == "--nproc":
            processes = value
        elif flag == "--preload":
            modules = value or ","  # "," names no module, so the check below fails
        else:
            flags.append(flag + has + value)
    if not args:
        raise UsageError("launch: missing program; give its file after the flags")
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
    if not any(flag.split("=")[0] in ("--clocks", "--from", "--resume", "-f") for flag in flags):
        flags.append(f"--clocks={NO_END}")  # the programs end the job when they are done
    command = shlex.join([sys.executable, "-m", "perdure", _AS_SLOT, processes, modules, *args])
    _agent.become(_agent.binary(), ["up", "--workers", processes, *flags, "--exec", command])


def as_slot(processes: str, modules: str, program: str, args: list[str]) -> None:
    """Run a program in this process, which ``perdure up`` has started for a slot. With modules, run it in a fork."""
    rank = os.environ.get("PERDURE_SLOT", "0")
    os.environ.update(RANK=rank, LOCAL_RANK=rank, ROLE_RANK=rank, GROUP_RANK="0", ROLE_NAME="default")
    os.environ.update(WORLD_SIZE=processes, LOCAL_WORLD_SIZE=processes, ROLE_WORLD_SIZE=processes, GROUP_WORLD_SIZE="1")
    _nested.explain()
    sys.argv = [program, *args]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    if modules:
        for module in modules.split(","):
            importlib.import_module(module)
        _warm.fork(program)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
