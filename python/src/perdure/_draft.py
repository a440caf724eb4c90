"""Drafts: how far a slot has come between two outer steps, in files of the run's folder on this machine.

What a slot has done since its last update lies in its process alone, and is done again where that dies. A draft makes
that less: the next process of the slot, on the same machine, goes on from it. A draft is never needed. It counts only
where it goes on from just what the servers have; a torn, an old or a strange one is passed over.

Two files are written in turn and in place, so that one is always whole, and a disk sees them seldom. They are not
synced: a machine that dies loses them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from . import _state
from .errors import UsageError

#: How much of its time a program may spend on drafts.
SHARE = 0.02

_HEAD = struct.Struct("<8sQIIQ")  # magic; bytes behind; their CRC-32; 0; how many drafts there were before
_MAGIC = b"PERDRAFT"


class Drafts:
    """The drafts of a slot. folder: of the run; None: it is not on this machine, and there are no drafts."""

    def __init__(self, folder: Path | None, slot: int) -> None:
        self._files: list[Path] = []
        self._count = 0
        self._due = 0.0  # seconds of the monotonic clock
        if folder is None or not folder.is_dir():
            return
        self._files = [folder / "drafts" / f"slot-{slot}-{i}" for i in range(2)]

    @property
    def kept(self) -> bool:
        """Whether any are."""
        return bool(self._files)

    def due(self) -> bool:
        """Whether one more may be written: as often as takes SHARE of the time."""
        return bool(self._files) and time.monotonic() >= self._due

    def write(self, draft: Any) -> None:
        """Write a draft: what ``_state`` can keep."""
        begun = time.monotonic()
        kept = _state.Encoded(draft)
        try:
            self._put(kept)
        except OSError as error:  # a full disk, for example
            self._do_without(self._files[0].parent, error)
        now = time.monotonic()
        self._due = now + (now - begun) / SHARE

    def _do_without(self, folder: Path, error: OSError) -> None:
        """Say why there are no more drafts, which is said once, since nobody tries again. A full disk has room then."""
        self.forget()
        warnings.warn(
            f"drafts cannot be written into {folder} ({error.strerror}): training goes on without them, and a process "
            "that takes this slot over does all steps since its last outer one again; make room in that folder, or let "
            "this user write to it, and the slot's next process writes drafts again",
            RuntimeWarning,
            stacklevel=2,
        )

    def _put(self, kept: _state.Encoded) -> None:
        size = _HEAD.size + kept.size
        self._files[0].parent.mkdir(mode=0o700, exist_ok=True)
        with open(os.open(self._files[self._count % 2], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as f:
            f.write(bytes(_HEAD.size))  # until it is whole, it is none
            f.flush()
            os.posix_fallocate(f.fileno(), 0, size)  # a full disk is to be said here, and not by a signal
            with mmap.mmap(f.fileno(), size) as memory:
                room = np.frombuffer(memory, np.uint8, kept.size, _HEAD.size)
                kept.write(room)
                check = zlib.crc32(room.data)
                del room  # a map is not closed while anybody has an array of it
                memory[: _HEAD.size] = _HEAD.pack(_MAGIC, kept.size, check, 0, self._count)
        self._count += 1

    def read(self) -> Any:
        """The newest draft that is whole; None: there is none."""
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
        """Delete those that are there."""
        for path in self._files:
            with contextlib.suppress(OSError):  # who cannot delete them leaves what nobody will go on from
                path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete them, and write no more: nobody will go on from them."""
        self.drop()
        self._files = []
