"""The agent: a process that is this program's worker. What is said to it is in docs/formats/agent.md."""

from __future__ import annotations

import contextlib
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

PROTOCOL = 1

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
) = range(1, 29)

_HEAD = struct.Struct("<HHIqqqq")
_MOST = 64 << 10  # bytes of a packet
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


class _Channel:
    """A socket to the agent, for one thread."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.buffer = bytearray(_MOST)
        self.poll = select.poll()
        self.poll.register(end, select.POLLIN)


class Agent:
    """A running agent. Calls may come from several threads; each has a channel of its own."""

    def __init__(self) -> None:
        binary()  # on other systems there are no such sockets, either
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
        self._opening = threading.Lock()
        self._opener = self._first  # by which threads ask for channels: no thread waits for another's call
        self._opener = self._open()

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
        if os.getpid() != self._pid:
            raise Forked("this process was forked after its parent had joined the job; join in the process that trains")
        if self._said_goodbye:
            raise UsageError("this job is closed")
        channel: _Channel | None = getattr(self._local, "channel", None)
        if channel is None:
            channel = self._local.channel = self._open()
        return self._on(channel, op, table, (a, b, c, 0), text, files, timeout)

    def _open(self) -> _Channel:
        """One more channel."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there, self._opening:
            self._on(self._opener, CHANNEL, 0, (0, 0, 0, 0), b"", [there.fileno()], None)
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
        late = False
        try:
            if files:
                socket.send_fds(channel.socket, [packet], files)
            else:
                channel.socket.send(packet)
            if timeout is not None and not channel.poll.poll(max(0.0, timeout) * 1000):
                late = True
                if not self._cancel(channel, number):
                    raise TimeoutError(f"no answer within {timeout} s, and none to the question who works on it")
            code, reply = self._receive(channel, number)
        except ConnectionError as error:
            raise self._dead() from error
        except (PerdureError, TimeoutError):
            raise
        except BaseException:  # Ctrl-C, or what a handler of signals raises
            self._give_up(channel, number)
            raise
        if code == 0:
            return reply
        kind = BY_CODE.get(code, PerdureError)
        if late and kind is _Cancelled:
            raise TimeoutError(f"no answer within {timeout} s: see `perdure status` for who is awaited")
        raise kind(reply.text.decode(errors="replace").removeprefix("perdure: "))

    def _receive(self, channel: _Channel, number: int) -> tuple[int, Reply]:
        """The reply to a call. Those to earlier ones are of calls that were interrupted."""
        flags, until = int(socket.MSG_DONTWAIT), time.perf_counter() + _LOOK_FOR
        while True:
            try:
                n = channel.socket.recv_into(channel.buffer, 0, flags)
            except BlockingIOError:
                if time.perf_counter() > until:
                    flags = 0
                continue
            if n < _HEAD.size:
                raise self._dead()
            code, _, of, a, b, c, d = _HEAD.unpack_from(channel.buffer)
            if of == number:
                return code, Reply(a, b, c, d, bytes(channel.buffer[_HEAD.size : n]))

    def _cancel(self, channel: _Channel, number: int) -> bool:
        """Have the call end that was made on a channel. False: there is none, after all."""
        for _ in range(1000):
            if channel.poll.poll(1):
                return True  # it has ended by itself
            if channel is not self._opener:
                with self._opening:
                    if self._on(self._opener, CANCEL, 0, (number, 0, 0, 0), b"", None, None).a:
                        return True  # else it has not begun
        return False

    def _give_up(self, channel: _Channel, number: int) -> None:
        """See to it that nothing more is done for a call, whatever interrupts that: the agent may be writing into this
        program's memory.
        """
        while True:
            try:
                if self._cancel(channel, number):
                    self._receive(channel, number)
                return
            except (ConnectionError, PerdureError):
                return  # the agent is dead
            except BaseException:  # once more: it must not be left half way
                continue

    def _dead(self) -> PerdureError:
        try:
            code: int | None = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        how = "" if code is None else f" with code {code}"
        return AgentDied(f"the agent has ended{how}; this program must end, too")

    def close(self, finished: bool) -> None:
        """Say goodbye, and wait for the agent's end. Unless the work is finished the slot is free for another."""
        if self._said_goodbye or os.getpid() != self._pid:
            return
        with contextlib.suppress(PerdureError):  # it is dead
            self.call(GOODBYE, a=int(finished))
        self._said_goodbye = True
        self._first.socket.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
