"""Forks a program from a process that has already imported its modules, and again after a kill or a rollback."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

from .errors import EXIT_ROLLED_BACK

_PDEATHSIG = 1  # prctl's PR_SET_PDEATHSIG

#: Seconds. A program killed sooner is not forked again, so that the supervisor counts its early failures.
QUICK = 10.0

#: Signals sent from outside. Others, such as SIGSEGV, are the program's own failures, which the supervisor counts.
_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def fork(program: str) -> None:
    """Return in a child process, which must run the program. This process exits like its last child."""
    parent, ending = os.getpid(), False
    child = 0

    def hand_on(number: int, _: object) -> None:
        nonlocal ending
        ending = True
        if child:
            os.kill(child, number)

    ours = {number: signal.signal(number, hand_on) for number in (signal.SIGTERM, signal.SIGINT)}
    while True:
        begun = time.monotonic()
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)  # the parent died before prctl took effect
            for number, handler in ours.items():
                signal.signal(number, handler)
            return
        if ending:
            os.kill(child, signal.SIGTERM)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        child = 0  # the number may belong to another process now
        if code == EXIT_ROLLED_BACK and not ending:
            continue
        if code >= 0:
            sys.exit(code)
        if ending or -code not in _OUTSIDE or time.monotonic() - begun < QUICK:
            if -code != signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        print(f"perdure: {program} was killed by {signal.Signals(-code).name}; starting it again", file=sys.stderr)
