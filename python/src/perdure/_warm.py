"""A process that has imported what a program needs, and forks the program: again where that is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

_PDEATHSIG = 1  # prctl's PR_SET_PDEATHSIG

#: Who is killed sooner is not forked again: the supervisor counts how often a program fails before it got on.
QUICK = 10.0

#: Signals that come from outside. All others, such as SIGSEGV, are a program's own failure, which is counted.
_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def fork(program: str) -> None:
    """Return in a child, which is to run the program. This process ends as its last child does."""
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
                os._exit(1)  # it has just died
            for number, handler in ours.items():
                signal.signal(number, handler)
            return
        if ending:
            os.kill(child, signal.SIGTERM)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        child = 0  # whoever has its number now is somebody else
        if code >= 0:
            sys.exit(code)
        if ending or -code not in _OUTSIDE or time.monotonic() - begun < QUICK:
            if -code != signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        print(f"perdure: {program} was killed by {signal.Signals(-code).name}; it begins again", file=sys.stderr)
