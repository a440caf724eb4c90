"""Forks a program from a process that has already imported its modules, and again after a kill or a rollback.

The program is one process, or the ranks of an island, which end together: docs/design/islands.md.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable

from .errors import EXIT_ROLLED_BACK

_PDEATHSIG = 1  # prctl's PR_SET_PDEATHSIG

#: Seconds. A program killed sooner is not forked again, so that the supervisor counts its early failures.
QUICK = 10.0

#: A rank without a sign of life in so many reads, one per second, is frozen. Imports may hold Python's lock for long.
FROZEN = 60

#: Signals sent from outside. Others, such as SIGSEGV, are the program's own failures, which the supervisor counts.
_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def fork(program: str, ranks: int = 0, prepare: Callable[[int], None] = lambda rank: None) -> None:
    """Return in a child process, which must run the program. This process exits like its last child.

    Args:
        program: The program's name, for messages.
        ranks: The number of ranks of an island. 0: the program is one process.
        prepare: Prepares the environment of each generation of children. It receives the rank, first -1 in the parent.
    """
    parent, ending = os.getpid(), False
    children: dict[int, int] = {}  # by process ID: the end of a pipe that the rank writes to, or -1

    def hand_on(number: int, _: object) -> None:
        nonlocal ending
        ending = True
        for child in children:
            with contextlib.suppress(ProcessLookupError):  # it has just been reaped
                os.kill(child, number)

    ours = {number: signal.signal(number, hand_on) for number in (signal.SIGTERM, signal.SIGINT)}
    while True:
        begun = time.monotonic()
        prepare(-1)
        for rank in range(max(ranks, 1)):
            ends = os.pipe() if ranks else (-1, -1)
            child = os.fork()
            if child == 0:
                ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(1)  # the parent died before prctl took effect
                for number, handler in ours.items():
                    signal.signal(number, handler)
                if ranks:
                    _show_life(ends[1])
                prepare(rank)
                return
            if ranks:
                os.close(ends[1])
                os.set_blocking(ends[0], False)
            children[child] = ends[0]
        if ending:
            for child in children:
                os.kill(child, signal.SIGTERM)
        code = _wait(children)
        if code == EXIT_ROLLED_BACK and not ending:
            continue
        if code >= 0:
            sys.exit(code)
        if ending or -code not in _OUTSIDE or time.monotonic() - begun < QUICK:
            if -code != signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        print(f"perdure: {program} was killed by {signal.Signals(-code).name}; starting it again", file=sys.stderr)


def _show_life(end: int) -> None:
    """Write to a pipe once a second, and close it when the program has ended: finalization stops the thread."""
    lock, closed = threading.Lock(), False

    def write() -> None:
        with contextlib.suppress(OSError):  # the parent has died
            while True:
                with lock:
                    if closed:
                        return
                    os.write(end, b".")
                time.sleep(1)

    def close() -> None:
        nonlocal closed
        with lock:
            closed = True
            os.close(end)

    atexit.register(close)
    threading.Thread(target=write, name="perdure-life", daemon=True).start()


def _wait(children: dict[int, int]) -> int:
    """Wait until all children have ended well or one has failed; kill the others. Return the exit code, or -signal."""
    files = {child: os.pidfd_open(child) for child in children}
    silent = dict.fromkeys(children, 0)
    poll = select.poll()
    for file in files.values():
        poll.register(file, select.POLLIN)
    codes: list[int] = []

    def reap(child: int, flags: int = 0) -> None:
        done, status = os.waitpid(child, flags)
        if done:
            codes.append(os.waitstatus_to_exitcode(status))
            end = children.pop(child)  # first, since the number may belong to another process now
            if end >= 0:
                os.close(end)
            poll.unregister(files[child])
            os.close(files.pop(child))

    while children and not any(codes):
        if not poll.poll(1000):
            for child, end in children.items():
                silent[child] = 0 if end < 0 or _has_shown_life(end) else silent[child] + 1
                if silent[child] >= FROZEN:
                    print(f"perdure: process {child} of this island is frozen and was killed", file=sys.stderr)
                    os.kill(child, signal.SIGKILL)
        for child in list(children):
            reap(child, os.WNOHANG)
    for child in children:
        os.kill(child, signal.SIGKILL)
    # The other ranks soon fail because the first one has ended, so those found with it are of lower interest.
    code = min(codes, key=lambda code: (code >= 0, code != EXIT_ROLLED_BACK, -code))
    for child in list(children):
        reap(child)
    return code


def _has_shown_life(end: int) -> bool:
    """Reports whether a rank has written since the last call, or has closed its end, as an exec does."""
    try:
        os.read(end, 1 << 16)
    except BlockingIOError:
        return False
    return True
