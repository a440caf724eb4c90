"""The command ``perdure``: the program that is in this package, and ``perdure launch`` for programs in Python."""

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

Start PROGRAM.py in N slots of a job on this machine, with a coordinator and servers. Whatever dies is started again.
Each process has RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and their likes GROUP_… and ROLE_…, as torchrun has
them; RANK is its slot. It has no MASTER_ADDR: processes meet at the servers, and not at one of them.

  perdure launch --nproc 4 --servers 2 --recovery resend:auto train.py --epochs 3

With --preload MODULE,… a slot's process imports these modules, which may take longer than all else, and forks the
program. Where that is killed it is forked anew, and need not import them again:

  perdure launch --nproc 4 --preload torch,torch._dynamo,perdure.torch train.py
"""

#: What the command of a slot begins with, behind ``python -m perdure``.
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
    """Become ``perdure up``, which starts the program."""
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
            modules = value or ","  # which names no module
        else:
            flags.append(flag + has + value)
    if not args:
        raise UsageError("launch: there is no program; name a file, behind the flags")
    if not processes.isdecimal() or int(processes) < 1:
        raise UsageError(f"launch: --nproc {processes}; say how many processes there are to be, 1 or more")
    if not os.path.isfile(args[0]):
        raise UsageError(f"launch: there is no file {args[0]}")
    sys.path[0] = os.path.dirname(os.path.abspath(args[0]))  # as in a slot
    for module in modules.split(",") if modules else ():
        try:
            known = importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            known = False
        if not known:
            raise UsageError(f"launch: --preload {module}: there is no such module")
    if not any(flag.split("=")[0] in ("--clocks", "--from", "--resume", "-f") for flag in flags):
        flags.append(f"--clocks={NO_END}")  # programs end when they have done
    command = shlex.join([sys.executable, "-m", "perdure", _AS_SLOT, processes, modules, *args])
    _agent.become(_agent.binary(), ["up", "--workers", processes, *flags, "--exec", command])


def as_slot(processes: str, modules: str, program: str, args: list[str]) -> None:
    """Run a program in this process, which ``perdure up`` has started for a slot, or in one that this one forks."""
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
