"""The agent: a process that is this program's worker. What is said to it is in docs/formats/agent.md."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from .errors import BY_CODE, AgentDied, Forked, PerdureError, UsageError, _Cancelled

PROTOCOL = 3

(
    HELLO,
    CHANNEL,
    CANCEL,
    MAP,
    UNMAP,
    TABLE,
    GET_RUN,
    GET_ROWS,
    INC_RUN,
    INC_ROWS,
    PREFETCH,
    FLUSH,
    FORGET,
    WEIGH,
    STORED,
    CLOCK,
    NOW,
    SETTLE,
    AWAIT_SLOTS,
    SAVE_STATE,
    LOAD_STATE,
    FETCH,
    REPORT,
    END_JOB,
    FINISH,
    GOODBYE,
    LEND,
    DELTAS,
    AT,
) = range(1, 30)

_HEAD = struct.Struct("<HHIqqqq")
_MOST = 64 << 10  # bytes of a packet
_PATIENCE = 5.0  # seconds for what an agent answers at once: one that does not is stopped, or swapped out
PROMPT = 60.0  # likewise; but it may be starting, on a machine that does much else
_LONGEST_POLL = 1e6  # seconds
_HUNG_UP = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)
_LOOK_FOR = 50e-6  # seconds in which a reply is looked for again and again: to wake who waits takes as long


class Reply(NamedTuple):
    """What a call gives: four numbers, and text."""

    a: int
    b: int
    c: int
    d: int
    text: bytes


def begin(args: list[str], **how: Any) -> subprocess.Popen[str]:
    """Start the perdure program, in a session of its own, so that Ctrl-C in a terminal is this program's alone."""
    program = binary()
    try:
        return subprocess.Popen([program, *args], stdin=subprocess.DEVNULL, start_new_session=True, text=True, **how)
    except OSError as error:
        raise UsageError(f"{program} cannot be started: {error.strerror}") from None


def binary() -> str:
    """The perdure program: that of the environment's PERDURE_BINARY, of this package, or in PATH."""
    if sys.platform != "linux":
        raise UsageError(f"perdure runs on Linux, and this is {sys.platform}; use a machine or container with Linux")
    named = os.environ.get("PERDURE_BINARY")
    if named:
        return named
    for folder in (Path(__file__).parent / "bin", *map(Path, os.get_exec_path())):
        if _is_program(folder / "perdure"):
            return str(folder / "perdure")
    raise UsageError(
        "this package has no perdure program for this platform: put one into PATH, or its path into PERDURE_BINARY"
    )


def _is_program(file: Path) -> bool:
    """Whether a file is a program of Linux. The command that this package installs is a script, which asks here."""
    try:
        with file.open("rb") as of:
            return of.read(4) == b"\x7fELF" and os.access(file, os.X_OK)
    except OSError:
        return False


def become(program: str, args: list[str]) -> NoReturn:
    """Have a program take this process's place."""
    if os.path.realpath(program) == os.path.realpath(sys.argv[0]):
        raise UsageError(f"{program} is this command itself; let PERDURE_BINARY be the path of the program")
    try:
        os.execv(program, ["perdure", *args])
    except OSError as error:
        raise UsageError(f"{program} cannot be started: {error.strerror}") from None


class _HungUp(Exception):
    """The agent is dead, or is about to end."""


class _Channel:
    """A socket to the agent, for one thread, and another one by which the thread cancels a call.

    No thread waits for a lock to cancel a call: an exception that a signal raises may leave a lock locked.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.canceller = self
        self.buffer = bytearray(_MOST)
        self.poll = select.poll()
        self.poll.register(end, select.POLLIN)


class Agent:
    """A running agent. Calls may come from several threads; each has a channel of its own."""

    def __init__(self) -> None:
        program = binary()  # on other systems there are no such sockets, either
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = there.fileno()
        with there:
            self.process = begin(["agent", "--fd", str(fd)], pass_fds=[fd])
        self._pid = os.getpid()
        self._ids = itertools.count(1)
        self._local = threading.local()
        self._first = _Channel(here)
        self._local.channel = self._first
        self._said_goodbye = False
        self._killed = False
        self._opening = threading.Lock()
        self._opener = self._first
        try:
            opener = self._open()  # by which threads ask for channels: no thread waits for another's call
        except AgentDied as error:
            if self._killed or (self.process.returncode or 0) < 0:
                raise
            raise UsageError(
                f"{program} has ended with code {self.process.returncode} when it was to be this program's agent; "
                "where it does not say why, it is of another version than this package: install both of one"
            ) from error
        self._first.canceller = self._one_more()
        self._opener = opener

    def call(
        self,
        op: int,
        table: int = 0,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        text: bytes = b"",
        files: list[int] | None = None,
        timeout: float | None = None,
    ) -> Reply:
        """Make a call, and wait for its reply. When it raises, nothing more is done for it: no memory is written.

        timeout: seconds, after which TimeoutError is raised; None: it waits.
        """
        self.check()
        channel: _Channel | None = getattr(self._local, "channel", None)
        if channel is None:
            channel = self._local.channel = self._open()
        return self._on(channel, op, table, (a, b, c, 0), text, files, timeout)

    def check(self) -> None:
        """Raise unless this process may make calls."""
        if os.getpid() != self._pid:
            raise Forked("this process was forked after its parent had joined the job; join in the process that trains")
        if self._said_goodbye:
            raise UsageError("this job is closed")

    def _open(self) -> _Channel:
        """Open a channel with its canceller."""
        of = self._one_more()
        of.canceller = self._one_more()
        return of

    def _one_more(self) -> _Channel:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there, self._opening:
            self._on(self._opener, CHANNEL, 0, (0, 0, 0, 0), b"", [there.fileno()], PROMPT)
        return _Channel(here)

    def _on(
        self,
        channel: _Channel,
        op: int,
        table: int,
        args: tuple[int, int, int, int],
        text: bytes,
        files: list[int] | None,
        timeout: float | None,
    ) -> Reply:
        number = next(self._ids) & 0xFFFFFFFF
        packet = _HEAD.pack(op, table, number, *args) + text
        if len(packet) > _MOST:
            raise UsageError(f"{len(packet)} bytes of names and settings; {_MOST} at most")
        until = None if timeout is None else time.perf_counter() + timeout
        try:
            self._send(channel, packet, files)
            said = self._receive(channel, number, until)
            late = said is None
            code, reply = said or self._cancel(channel, number)
        except _HungUp as error:
            raise self._dead() from error.__cause__
        except BaseException:  # Ctrl-C, or what a handler of signals raises
            self._give_up(channel, number)
            raise
        if code == 0:
            return reply
        kind = BY_CODE.get(code, PerdureError)
        if late and kind is _Cancelled:
            raise TimeoutError(f"no answer within {timeout} s: see `perdure status` for who is awaited")
        raise kind(reply.text.decode(errors="replace").removeprefix("perdure: "))

    def _send(self, channel: _Channel, packet: bytes, files: list[int] | None = None) -> None:
        try:
            if files:
                socket.send_fds(channel.socket, [packet], files)
            else:
                channel.socket.send(packet)
        except OSError as error:
            if error.errno in _HUNG_UP:
                raise _HungUp from error
            raise

    def _receive(self, channel: _Channel, number: int, until: float | None) -> tuple[int, Reply] | None:
        """The reply to a call; None: there was none until then. Those to earlier ones are of calls that were
        interrupted.
        """
        flags, look = int(socket.MSG_DONTWAIT), time.perf_counter() + _LOOK_FOR
        while True:
            try:
                n = channel.socket.recv_into(channel.buffer, 0, flags)
            except BlockingIOError:
                now = time.perf_counter()
                if now < look:
                    continue
                if until is None:
                    flags = 0
                elif now >= until:
                    return None
                else:
                    channel.poll.poll(min(until - now, _LONGEST_POLL) * 1000)
                continue
            except OSError as error:
                if error.errno in _HUNG_UP:
                    raise _HungUp from error
                raise
            if n < _HEAD.size:
                raise _HungUp
            code, _, of, a, b, c, d = _HEAD.unpack_from(channel.buffer)
            if of == number:
                return code, Reply(a, b, c, d, bytes(channel.buffer[_HEAD.size : n]))

    def _cancel(self, channel: _Channel, number: int) -> tuple[int, Reply]:
        """Have the call end that was made on a channel, and return its reply."""
        return self._awaited(channel, number, number, time.perf_counter() + _PATIENCE)

    def _give_up(self, channel: _Channel, number: int) -> None:
        """See to it that nothing more is done for a call, whatever interrupts that: the agent may be writing into this
        program's memory. Whether the call was sent, and whether its reply has come, nobody knows.
        """
        until = time.perf_counter() + _PATIENCE
        while True:
            try:
                last = next(self._ids) & 0xFFFFFFFF  # is answered behind the call
                self._send(channel, _HEAD.pack(CANCEL, 0, last, 0, 0, 0, 0))
                self._awaited(channel, last, number, until)
                return
            except _HungUp:
                return
            except BaseException:  # once more: it must not be left half way
                if time.perf_counter() > until:
                    self._kill()  # has it hang up

    def _awaited(self, channel: _Channel, reply_to: int, cancelled: int, until: float) -> tuple[int, Reply]:
        """The reply to a call, while another one, or the same, is cancelled. An agent that gives none until then is
        killed: it may go on at any time, and write into memory that is something else by then.
        """
        while True:
            soon = time.perf_counter() + 1e-3
            said = self._receive(channel, reply_to, until if channel is channel.canceller else min(soon, until))
            if said is not None:
                return said
            if time.perf_counter() < until:
                number = next(self._ids) & 0xFFFFFFFF
                self._send(channel.canceller, _HEAD.pack(CANCEL, 0, number, cancelled, 0, 0, 0))
                said = self._receive(channel.canceller, number, until)
            if said is None:
                self._kill()
                raise _HungUp

    def _kill(self) -> None:
        self.process.kill()
        self._killed = True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)

    def _dead(self) -> PerdureError:
        if self._said_goodbye:
            return UsageError("this job is closed")
        try:
            code: int | None = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        if self._killed:
            how = f"did not answer within {_PATIENCE:g} s, and was killed"
        else:
            how = "has ended" if code is None else f"has ended with code {code}"
        return AgentDied(f"the agent {how}; this program must end, too")

    def close(self, finished: bool) -> None:
        """Say goodbye, and wait for the agent's end. Unless the work is finished the slot is free for another."""
        if self._said_goodbye or os.getpid() != self._pid:
            return
        with contextlib.suppress(PerdureError, TimeoutError):  # it is dead
            self.call(GOODBYE, a=int(finished), timeout=_PATIENCE)
        self._said_goodbye = True
        self._first.socket.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
