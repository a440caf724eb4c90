"""Drafts: a slot's progress between two outer steps.

A slot's work since its last update exists only in its process, and is repeated if the process dies. A draft reduces
that: the slot's next process continues from it. Drafts are never required. A draft is used only if it starts from the
state that the servers hold; torn, old and foreign drafts are ignored.

Now and then a draft is written to the run's directory on this machine. Two files are written alternately and in place,
so one is always complete. They are not synced, so they seldom reach the disk, and a machine that crashes loses them.
The last draft of a process that has to end goes to the job's store, where the slot's next process finds it on any
machine.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _agent, _state
from .errors import PerdureError, UsageError

if TYPE_CHECKING:
    from .job import Job

#: The max share of its time that a program spends on drafts.
SHARE = 0.02

_PIECE = 32 << 20  # bytes of a piece that is sent to the store

_HEAD = struct.Struct("<8sQIIQ")  # magic; size of the data that follow; their CRC-32; 0; number of earlier drafts
_MAGIC = b"PERDRAFT"


class Stored:
    """A slot's draft in the job's store.

    ``write`` runs in a thread that must take no lock that the program may hold. So the thread must call ``prepare``
    first.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._room = job._map(_PIECE)  # no memory before the first write
        self._exists = False

    def prepare(self) -> None:
        """Open this thread's channel to the agent."""
        self._job._agent.call(_agent.CANCEL)

    def write(self, draft: Any) -> None:
        """Replace the draft, and return when the store has it."""
        kept, call = _state.Encoded(draft), self._job._agent.call
        call(_agent.STREAM_STATE, a=_agent.DRAFT, c=kept.size)
        self._exists, at = True, 0
        while at < kept.size:
            count = kept.read(at, self._room.bytes)
            at = call(_agent.STATE_PIECE, a=self._room.address, b=at, c=count, d=_agent.DRAFT).a
        call(_agent.COPIED, a=_agent.DRAFT)

    def read(self) -> Any:
        """Return the draft, or None."""
        draft = self._job._load_draft()
        self._exists = self._exists or draft is not None
        return draft

    def delete(self) -> None:
        """Delete the draft that this process knows of."""
        if self._exists:
            self._exists = False
            self._job._agent.call(_agent.STREAM_STATE, a=_agent.DRAFT)


class Drafts:
    """The drafts of a slot.

    Args:
        folder: The run's directory. None disables drafts there, for example if it is on another machine.
        slot: The slot.
        stored: The draft in the job's store. None: this machine cannot reach the store, or no drafts are written.
    """

    def __init__(self, folder: Path | None, slot: int, stored: Stored | None = None) -> None:
        self.stored = stored
        self._files: list[Path] = []
        self._count = 0
        self._due = 0.0  # monotonic time of the next draft
        if folder is None or not folder.is_dir():
            return
        self._files = [folder / "drafts" / f"slot-{slot}-{i}" for i in range(2)]

    def prepare(self) -> None:
        """Prepare the calling thread for ``write_last``."""
        if self.stored is not None:
            self.stored.prepare()

    @property
    def kept(self) -> bool:
        """Reports whether drafts are written on this machine."""
        return bool(self._files)

    def due(self) -> bool:
        """Reports whether another draft may be written, so that drafts take at most SHARE of the time."""
        return bool(self._files) and time.monotonic() >= self._due

    def write_last(self, draft: Any) -> None:
        """Write a draft for any machine, if possible: this process has to end."""
        try:
            if self.stored is not None:
                self.stored.write(draft)
                return
        except PerdureError:
            if not self._files:
                raise
        if self._files:
            self._put(_state.Encoded(draft))

    def newest(self, origin: Callable[[], str]) -> Any:
        """Return the draft with the most steps that starts from a state, or None. origin: describes that state."""
        found = [self.read(), None if self.stored is None else self.stored.read()]
        of = [draft for draft in found if draft is not None and draft["origin"] == origin()]
        return max(of, key=lambda draft: draft["steps"], default=None)

    def write(self, draft: Any) -> None:
        """Write a draft of values that ``_state`` can encode."""
        begun = time.monotonic()
        kept = _state.Encoded(draft)
        try:
            self._put(kept)
        except OSError as error:  # a full disk, for example
            self._do_without(self._files[0].parent, error)
        now = time.monotonic()
        self._due = now + (now - begun) / SHARE

    def _do_without(self, folder: Path, error: OSError) -> None:
        """Disable drafts, and warn once why. Deleting the old ones frees space on a full disk."""
        self.forget()
        warnings.warn(
            f"cannot write drafts to {folder} ({error.strerror}): training continues without them, and a replacement "
            "process of this slot repeats all steps since the last outer step; free space there, or make the directory "
            "writable for this user: the slot's next process then writes drafts again",
            RuntimeWarning,
            stacklevel=2,
        )

    def _put(self, kept: _state.Encoded) -> None:
        size = _HEAD.size + kept.size
        self._files[0].parent.mkdir(mode=0o700, exist_ok=True)
        with open(os.open(self._files[self._count % 2], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as f:
            f.write(bytes(_HEAD.size))  # invalidates the old draft until the new one is complete
            f.flush()
            os.posix_fallocate(f.fileno(), 0, size)  # reports a full disk here, rather than by SIGBUS on a write
            with mmap.mmap(f.fileno(), size) as memory:
                room = np.frombuffer(memory, np.uint8, kept.size, _HEAD.size)
                kept.write(room)
                check = zlib.crc32(room.data)
                del room  # mmap cannot be closed while an array refers to it
                memory[: _HEAD.size] = _HEAD.pack(_MAGIC, kept.size, check, 0, self._count)
        self._count += 1

    def read(self) -> Any:
        """Return the newest complete draft of this machine, or None."""
        newest, draft = -1, None
        for path in self._files:
            try:
                data = path.read_bytes()
                magic, size, check, _, count = _HEAD.unpack_from(data)
                if magic == _MAGIC and count > newest and zlib.crc32(data[_HEAD.size : _HEAD.size + size]) == check:
                    newest, draft = count, _state.decode(data[_HEAD.size : _HEAD.size + size])
            except (OSError, struct.error, UsageError, ValueError):
                continue
        self._count = newest + 1
        return draft

    def drop(self) -> None:
        """Delete the existing drafts."""
        for path in self._files:
            with contextlib.suppress(OSError):  # a draft that cannot be deleted is ignored later
                path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete the drafts of this machine and write no more of them."""
        self.drop()
        self._files = []
