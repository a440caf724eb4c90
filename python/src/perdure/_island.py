"""An island: several ranks on one host that act as one slot. docs/design/islands.md describes the protocol."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import errors
from ._agent import Agent, SharedAgent
from .errors import PerdureError, UsageError

if TYPE_CHECKING:
    from .job import _Now

#: Set in each rank of an island that ``perdure launch`` has started.
VARIABLE = "PERDURE_ISLAND"
TORCHRUN = "TORCHELASTIC_RUN_ID"

_PDEATHSIG = 1  # prctl's PR_SET_PDEATHSIG
_PATIENCE = 600.0  # seconds that rank 0 may take until it listens; its imports may take long on a busy machine
_HEAD = struct.Struct("<IQ")  # sizes of a message and of its payload
_CREDENTIALS = struct.Struct("3i")  # process, user and group

Bytes = bytes | bytearray | memoryview


class Link:
    """A connection between rank 0 and a follower."""

    def __init__(self, end: socket.socket, rank: int) -> None:
        self._socket, self._rank = end, rank  # of the peer
        _, user, _ = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if user != os.getuid():  # any process may use an abstract name
            raise PerdureError(f"a process of user {user} uses the socket of this island; this program must exit")

    def send(self, message: Mapping[str, Any], payload: Bytes = b"") -> None:
        text = json.dumps(message).encode()
        with self._while_alive():
            self._socket.sendall(_HEAD.pack(len(text), len(payload)) + text)
            if payload:  # otherwise the peer may have ended, as after the last message of a training
                self._socket.sendall(payload)

    def receive(self) -> tuple[dict[str, Any], bytearray]:
        with self._while_alive():
            size, more = _HEAD.unpack(self._read(_HEAD.size))
            return json.loads(self._read(size)), self._read(more)

    def part(self, start: int, end: int) -> NDArray[np.uint8]:
        """Read a part of the state that the peer has."""
        self.send({"read": [start, end]})
        return np.frombuffer(self.receive()[1], np.uint8)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send_file(self, fd: int) -> None:
        with self._while_alive():
            socket.send_fds(self._socket, [b"f"], [fd])

    def receive_file(self) -> int:
        with self._while_alive():
            data, files, _, _ = socket.recv_fds(self._socket, 1, 1)
            if not data or not files:
                raise EOFError
            return files[0]

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        room = memoryview(data)
        while room:
            count = self._socket.recv_into(room)
            if not count:
                raise EOFError
            room = room[count:]
        return data

    @contextlib.contextmanager
    def _while_alive(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            raise PerdureError(f"rank {self._rank} of this island has ended; this program must exit") from error


class Island:
    """This process's place in its island. Rank 0 has a link to each follower, and a follower has one to rank 0."""

    def __init__(self, rank: int, size: int, name: str) -> None:
        self.rank, self.size = rank, size
        self.now: _Now | None = None  #: the clock of all ranks; None: rank 0 may be changing it
        self._name = name
        self._links: list[Link] = []
        self._listener: socket.socket | None = None
        if rank == 0:
            self._listener = _bound(name, "another process is already rank 0 of this island")
            self._listener.listen(size)
        slot, host = os.environ.get("PERDURE_SLOT"), os.environ.get("PERDURE_HOST")
        if rank == 0 and slot and host:  # without it, a second island would wait for the end of the first one
            self._claim = _bound(f"\0perdure-slot-{host}-{slot}", f"another island already has slot {slot}")

    def attach(self) -> tuple[Agent, dict[str, Any]]:
        """Connect this follower to rank 0, whose agent it uses. Return the agent, and its reply to the hello."""
        end, until = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), time.monotonic() + _PATIENCE
        while True:
            try:
                end.connect(self._name)
                break
            except OSError as error:
                if time.monotonic() > until:
                    raise UsageError(
                        f"rank 0 of this island has not joined the job within {_PATIENCE:g} s ({error.strerror}): call "
                        "perdure.start() on all ranks"
                    ) from None
                time.sleep(0.02)
        link = Link(end, 0)
        self._links = [link]
        link.send({"rank": self.rank, "size": self.size})
        said = self.wait()
        return SharedAgent(socket.socket(fileno=link.receive_file()), self.rank), said["hello"]

    def admit(self, agent: Agent, hello: Mapping[str, Any]) -> None:
        """Connect rank 0 to all followers, and give each a channel to the agent."""
        assert self._listener is not None
        found: dict[int, Link] = {}
        wrong = ""
        self._listener.settimeout(_PATIENCE)
        while len(found) < self.size - 1:
            try:
                end, _ = self._listener.accept()
            except TimeoutError:
                missing = ", ".join(str(rank) for rank in range(1, self.size) if rank not in found)
                raise UsageError(
                    f"ranks {missing} of this island have not called perdure.start() within {_PATIENCE:g} s; call it "
                    "on all ranks"
                ) from None
            end.settimeout(None)
            link = Link(end, len(found) + 1)
            said, _ = link.receive()
            rank = said["rank"]
            if said["size"] != self.size:
                wrong = f"rank {rank} of this island has WORLD_SIZE {said['size']}, but rank 0 has {self.size}"
            elif not 0 < rank < self.size or rank in found:
                wrong = f"two processes of this island have RANK {rank}, or it is not below {self.size}"
            found[len(found) + 1 if wrong else rank] = Link(end, rank)
            if wrong:
                break
        self._listener.close()
        self._links = [found[rank] for rank in sorted(found)]
        if wrong:
            with self.failing():
                raise UsageError(f"{wrong}; start the ranks with perdure launch or with one torchrun")
        self.tell({"hello": dict(hello)})
        for link in self._links:
            with agent.one_more() as end:
                link.send_file(end.fileno())

    # Rank 0

    def gather(self, kind: str) -> list[tuple[dict[str, Any], bytearray]]:
        """Return a message of each follower, in the order of the ranks. All must be at the same point."""
        said = [link.receive() for link in self._links]
        for rank, (message, _) in enumerate(said, 1):
            if message["at"] != kind:
                raise UsageError(
                    f"rank {rank} of this island {_AT[message['at']]}, but rank 0 {_AT[kind]}; all ranks must make the "
                    "same steps and leave the loop after the same one"
                )
        return said

    def tell(self, message: Mapping[str, Any], payload: Bytes = b"") -> None:
        """Send a message to all followers."""
        for link in self._links:
            link.send(message, payload)

    def tell_rank(self, rank: int, message: Mapping[str, Any], payload: Bytes = b"") -> None:
        """Send a message to one follower."""
        self._links[rank - 1].send(message, payload)

    def send_file(self, fd: int) -> None:
        """Send a file to all followers."""
        for link in self._links:
            link.send_file(fd)

    def part(self, rank: int) -> Callable[[int, int], NDArray[np.uint8]]:
        """Return a function that reads a part of the state of a follower, which waits in ``wait``."""
        return self._links[rank - 1].part

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Raise the block's error in all followers as well."""
        try:
            yield
        except Exception as error:
            with contextlib.suppress(PerdureError):  # a follower has ended
                self.tell({"error": type(error).__name__, "text": str(error)})
            raise

    @contextlib.contextmanager
    def stepping(self, now: Callable[[], _Now]) -> Iterator[None]:
        """Allow rank 0 to end clocks. The block's end sets the clock of the ranks. now: returns it."""
        self.now = None
        yield
        self.now = now()

    # Followers

    def report(self, at: str, message: Mapping[str, Any] | None = None, payload: Bytes = b"") -> None:
        """Send a message to rank 0. at: the point in the program."""
        self._links[0].send({"at": at} | dict(message or {}), payload)

    def wait(self, read: Callable[[int, NDArray[np.uint8]], int] | None = None) -> dict[str, Any]:
        """Return the next message of rank 0. Raises the error that rank 0 has raised.

        Args:
            read: Copies the part of this rank's state that starts at a position to an array.
        """
        return self.wait_for_more(read)[0]

    def wait_for_more(
        self, read: Callable[[int, NDArray[np.uint8]], int] | None = None
    ) -> tuple[dict[str, Any], bytearray]:
        """Return the next message like ``wait``, with its payload."""
        while True:
            message, payload = self._links[0].receive()
            if "read" in message and read is not None:
                start, end = message["read"]
                room = np.empty(end - start, np.uint8)
                read(start, room)
                self._links[0].send({}, room.data)
                continue
            if "error" not in message:
                return message, payload
            kind = getattr(errors, message["error"], None)
            if isinstance(kind, type) and issubclass(kind, PerdureError):
                raise kind(message["text"])
            raise PerdureError(f"rank 0 of this island has failed: {message['error']}: {message['text']}")

    def receive_file(self) -> int:
        """Return the next file of rank 0."""
        return self._links[0].receive_file()

    # All ranks

    def more_links(self) -> list[Link]:
        """Return a second connection to each follower, or to rank 0, for another thread. All ranks must call it."""
        if self.rank > 0:
            return [Link(socket.socket(fileno=self.receive_file()), 0)]
        found = []
        for rank, link in enumerate(self._links, 1):
            here, there = socket.socketpair()
            with there:
                link.send_file(there.fileno())
            found.append(Link(here, rank))
        return found

    def agree(self, what: Mapping[str, Any]) -> None:
        """Raise UsageError on all ranks unless all have the same values, which must be of JSON's types."""
        if self.rank > 0:
            self.report("agree", {"what": what})
            self.wait()
            return
        with self.failing():
            mine = json.loads(json.dumps(what))
            for rank, (message, _) in enumerate(self.gather("agree"), 1):
                difference = _difference(mine, message["what"])
                if difference:
                    here, there = difference
                    raise UsageError(
                        f"rank {rank} of this island has {there}, but rank 0 has {here}; all ranks of an island must "
                        "create the same model with the same settings"
                    )
            self.tell({})


def _bound(name: str, taken: str) -> socket.socket:
    """Return a socket with an abstract name, which is free again when this process has ended."""
    of = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        of.bind(name)
    except OSError as error:
        of.close()
        raise UsageError(
            f"{taken} ({error.strerror}); start one island per slot, with perdure launch or with one torchrun"
        ) from None
    os.register_at_fork(after_in_child=of.close)  # a loader's process may outlive this one
    return of


#: The points at which ranks meet, for messages.
_AT = {
    "agree": "creates DataParallel or DiLoCo",
    "begin": "creates DataParallel or DiLoCo",
    "step": "makes an outer step",
    "taken": "has ended an outer step",
    "pass": "ends a backward pass",
    "export": "exports the model",
    "finish": "has left the loop",
}


def _difference(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return descriptions of the first difference between two mappings of values of JSON's types, or None."""
    for name, here in mine.items():
        there = theirs[name]
        if here == there:
            continue
        if isinstance(here, list) and len(here) != len(there):
            return f"{len(here)} {name}", f"{len(there)} {name}"
        if isinstance(here, list):
            here, there = next((h, t) for h, t in zip(here, there, strict=True) if h != t)
        return f"{name} {_text(here)}", f"{name} {_text(there)}"
    return None


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def of_environment() -> Island | None:
    """Return this process's island, or None if it is the only process of its slot.

    Raises:
        UsageError: The launchers are nested, or the ranks are on several hosts.
    """
    launched, torchrun = VARIABLE in os.environ, TORCHRUN in os.environ
    if not launched and not torchrun:
        return None
    if launched and torchrun:
        raise UsageError(
            "torchrun was started inside an island of perdure launch, whose ranks it would start again; start the "
            "program without torchrun, or with perdure launch without --nproc-per-learner"
        )
    if torchrun and TORCHRUN in _environment_of(os.getppid()):
        raise UsageError("torchrun was started inside torchrun; start the program with one torchrun per slot")
    try:
        rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
        port = int(os.environ["MASTER_PORT"])
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"the environment of this rank of an island is incomplete ({error}); start it with perdure launch or "
            "torchrun"
        ) from None
    if size != local:
        raise UsageError(
            f"this island has {size} ranks, {local} of them on this host, but an island must be on one host; start one "
            "torchrun per slot, each with --nnodes 1"
        )
    if torchrun:  # torchrun may be killed, and its ranks must not outlive it
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Island(rank, size, f"\0perdure-island-{os.getppid()}-{port}-{again}")


def refuse_other_ranks(island: Island | None, kept: Mapping[str, Any] | None) -> None:
    """Raise UsageError if another number of ranks has saved a slot's state."""
    saved_by, here = 1 + len((kept or {}).get("ranks", ())), 1 if island is None else island.size
    if kept is not None and saved_by != here:
        raise UsageError(
            f"this slot has {here} ranks, but {saved_by} when it saved its state; start it with as many ranks as "
            "before, or start a new job with the exported model"
        )


def refuse_alone() -> None:
    """Raise UsageError if torchrun has started this process without a job to join."""
    if TORCHRUN in os.environ or VARIABLE in os.environ:
        raise UsageError(
            "torchrun has started this program, but no job to join exists: run perdure launch --nproc N for N "
            "learners of one process, or add --nproc-per-learner R for learners of R ranks, without torchrun"
        )


def _environment_of(process: int) -> set[str]:
    """Return the names of a process's environment variables, as far as this process may read them."""
    try:
        text = Path("/proc", str(process), "environ").read_bytes()
    except OSError:
        return set()
    return {line.partition(b"=")[0].decode(errors="replace") for line in text.split(b"\0")}
