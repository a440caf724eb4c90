"""The agent: a process that acts as this program's worker. docs/formats/agent.md describes the protocol."""

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

PROTOCOL = 10

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
    STREAM_STATE,
    STATE_PIECE,
    COPIED,
    ROUND,
) = range(1, 34)

_HEAD = struct.Struct("<HHIqqqq")
# The flags of NOW: the program has the shared state of the clock's start; it saves its own state with each update.
MARKS, SAVES_OWN = 1, 2
# The flags of GET_RUN.
UNTIL_COPY = 1
AS = {None: 0, "bf16": 2, "int8": 4}  # how servers round the rows
LOADS_COPY, LOADS_OTHER, LOADS_DRAFT = 1, 2, 3  # what LOAD_STATE loads instead of the slot's own state
DRAFT = 2  # the kind of STREAM_STATE, STATE_PIECE and COPIED for the slot's draft

_MOST = 64 << 10  # max bytes of a packet
_PATIENCE = 5.0  # seconds for calls that an agent answers immediately; one that does not is stopped or swapped out
PROMPT = 60.0  # the same limit while the agent may still be starting on a busy machine
_LONGEST_POLL = 1e6  # seconds
_HUNG_UP = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)
_LOOK_FOR = 50e-6  # seconds of busy-waiting for a reply, about what waking a sleeping thread costs


class Reply(NamedTuple):
    """The result of a call: four numbers and a text."""

    a: int
    b: int
    c: int
    d: int
    text: bytes


def begin(args: list[str], **how: Any) -> subprocess.Popen[str]:
    """Start the perdure program in its own session, so that Ctrl-C in a terminal reaches only this program."""
    program = binary()
    try:
        return subprocess.Popen([program, *args], stdin=subprocess.DEVNULL, start_new_session=True, text=True, **how)
    except OSError as error:
        raise UsageError(f"{program} cannot be started: {error.strerror}") from None


def binary() -> str:
    """Return the path of the perdure program: PERDURE_BINARY, the one in this package, or the first in PATH."""
    if sys.platform != "linux":
        raise UsageError(f"perdure runs only on Linux, not on {sys.platform}; use a Linux machine or container")
    named = os.environ.get("PERDURE_BINARY")
    if named:
        return named
    for folder in (Path(__file__).parent / "bin", *map(Path, os.get_exec_path())):
        if _is_program(folder / "perdure"):
            return str(folder / "perdure")
    raise UsageError(
        "this package has no perdure program for this platform; install one in PATH, or set PERDURE_BINARY to its path"
    )


def _is_program(file: Path) -> bool:
    """Reports whether a file is a Linux executable, unlike the script that this package installs as a command."""
    try:
        with file.open("rb") as of:
            return of.read(4) == b"\x7fELF" and os.access(file, os.X_OK)
    except OSError:
        return False


def become(program: str, args: list[str]) -> NoReturn:
    """Replace this process with the given program."""
    if os.path.realpath(program) == os.path.realpath(sys.argv[0]):
        raise UsageError(f"{program} is this command itself; set PERDURE_BINARY to the path of the perdure program")
    try:
        os.execv(program, ["perdure", *args])
    except OSError as error:
        raise UsageError(f"{program} cannot be started: {error.strerror}") from None


class _HungUp(Exception):
    """The agent has died or is about to end."""


class _Channel:
    """A socket to the agent for one thread, and a second one with which the thread cancels calls.

    Cancelling needs no lock, since an exception raised by a signal handler may leave a lock held.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.canceller = self
        self.buffer = bytearray(_MOST)
        self.poll = select.poll()
        self.poll.register(end, select.POLLIN)


class Agent:
    """A running agent. Several threads may make calls concurrently; each has its own channel."""

    def __init__(self) -> None:
        program = binary()  # fails on other systems, which do not have SEQPACKET sockets
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
            opener = self._open()  # threads request channels on it, so they never wait for another thread's call
        except AgentDied as error:
            if self._killed or (self.process.returncode or 0) < 0:
                raise
            raise UsageError(
                f"{program} exited with code {self.process.returncode} when started as this program's agent; if it "
                "printed no reason, its version differs from this package's: install the same version of both"
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
        d: int = 0,
    ) -> Reply:
        """Make a call and wait for its reply. After it has raised, the agent writes no memory for this call.

        Args:
            op: The operation, such as HELLO.
            table: The number of a table.
            a: The first argument.
            b: The second argument.
            c: The third argument.
            text: The text of the request.
            files: File descriptors to pass.
            timeout: The longest time to wait, in seconds. None waits without a limit.
            d: The fourth argument.

        Returns:
            The reply.

        Raises:
            PerdureError: The agent replied with an error, or has died.
            TimeoutError: The agent did not reply in time.
        """
        self.check()
        channel: _Channel | None = getattr(self._local, "channel", None)
        if channel is None:
            channel = self._local.channel = self._open()
        return self._on(channel, op, table, (a, b, c, d), text, files, timeout)

    def check(self) -> None:
        """Raise an error if this process must not make calls."""
        if os.getpid() != self._pid:
            raise Forked("this process was forked after its parent had joined the job; join in the process that trains")
        if self._said_goodbye:
            raise UsageError("this job is closed; join it again")

    def _open(self) -> _Channel:
        """Open a channel and its canceller."""
        of = self._one_more()
        of.canceller = self._one_more()
        return of

    def _one_more(self) -> _Channel:
        return _Channel(self.one_more())

    def one_more(self) -> socket.socket:
        """Return the program's end of a new channel, which another process may use with ``SharedAgent``."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there, self._opening:
            self._on(self._opener, CHANNEL, 0, (0, 0, 0, 0), b"", [there.fileno()], PROMPT)
        return here

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
            raise UsageError(f"names and settings take {len(packet)} bytes; shorten them to at most {_MOST}")
        until = None if timeout is None else time.perf_counter() + timeout
        try:
            self._send(channel, packet, files)
            said = self._receive(channel, number, until)
            late = said is None
            code, reply = said or self._cancel(channel, number)
        except _HungUp as error:
            raise self._dead() from error.__cause__
        except BaseException:  # Ctrl-C, or an exception from a signal handler
            self._give_up(channel, number)
            raise
        if code == 0:
            return reply
        kind = BY_CODE.get(code, PerdureError)
        if late and kind is _Cancelled:
            raise TimeoutError(f"no answer within {timeout} s: `perdure status` shows which process is awaited")
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
        """Return the reply to a call, or None if there was none in time. Replies to interrupted calls are skipped."""
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
        """Cancel the call made on a channel, and return its reply."""
        return self._awaited(channel, number, number, time.perf_counter() + _PATIENCE)

    def _give_up(self, channel: _Channel, number: int) -> None:
        """Ensure, despite further interrupts, that the agent no longer writes this program's memory for a call.

        It is unknown whether the call was sent and whether its reply has arrived.
        """
        until = time.perf_counter() + _PATIENCE
        while True:
            try:
                last = next(self._ids) & 0xFFFFFFFF  # the agent answers this one after the call
                self._send(channel, _HEAD.pack(CANCEL, 0, last, 0, 0, 0, 0))
                self._awaited(channel, last, number, until)
                return
            except _HungUp:
                return
            except BaseException:  # interrupted again, so retry: the call must not be left half cancelled
                if time.perf_counter() > until:
                    self._kill()  # the next attempt then finds the connection closed

    def _awaited(self, channel: _Channel, reply_to: int, cancelled: int, until: float) -> tuple[int, Reply]:
        """Cancel a call, and return the reply to it or to a later call.

        An agent that does not reply in time is killed. It might resume later and write to memory that has been reused.
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
            return UsageError("this job is closed; join it again")
        try:
            code: int | None = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        if self._killed:
            how = f"did not answer within {_PATIENCE:g} s and was killed"
        else:
            how = "has ended" if code is None else f"has ended with code {code}"
        return AgentDied(f"the agent {how}; this program must exit")

    def close(self, finished: bool) -> None:
        """Send GOODBYE, and wait for the agent to end. Unless finished is true, another process may take the slot."""
        if self._said_goodbye or os.getpid() != self._pid:
            return
        with contextlib.suppress(PerdureError, TimeoutError):  # the agent has died
            self.call(GOODBYE, a=int(finished), timeout=_PATIENCE)
        self._said_goodbye = True
        self._first.socket.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class SharedAgent(Agent):
    """The agent of another process on this machine, which has handed over a channel.

    Args:
        opener: The program's end of the channel.
        number: Tells apart the calls of the processes that share the agent: it cancels calls by their numbers.
    """

    def __init__(self, opener: socket.socket, number: int) -> None:
        self._pid = os.getpid()
        self._ids = itertools.count((number << 24) + 1)
        self._local = threading.local()
        self._said_goodbye = self._killed = False
        self._opening = threading.Lock()
        self._opener = _Channel(opener)
        self._first = self._local.channel = self._open()

    def _kill(self) -> None:
        self._killed = True  # this program exits, and with it the other one

    def _dead(self) -> PerdureError:
        if self._said_goodbye:
            return UsageError("this job is closed; join it again")
        return AgentDied("the agent of this island has ended; this program must exit")

    def close(self, finished: bool) -> None:
        """Stop using the agent, which continues."""
        if not self._said_goodbye and os.getpid() == self._pid:
            self._said_goodbye = True
            self._first.socket.close()
            self._opener.socket.close()
