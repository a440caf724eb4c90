"""Drafts: a slot's progress between two outer steps, saved in the run's directory on this machine.

A slot's work since its last update exists only in its process, and is repeated if the process dies. A draft reduces
that: the slot's next process on the same machine continues from it. Drafts are never required. A draft is used only if
it starts from the state that the servers hold; torn, old and foreign drafts are ignored.

Two files are written alternately and in place, so one is always complete. They are not synced, so they seldom reach the
disk, and a machine that crashes loses them.
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

#: The max share of its time that a program spends on drafts.
SHARE = 0.02

_HEAD = struct.Struct("<8sQIIQ")  # magic; size of the data that follow; their CRC-32; 0; number of earlier drafts
_MAGIC = b"PERDRAFT"


class Drafts:
    """The drafts of a slot.

    Args:
        folder: The run's directory. None disables drafts, for example if it is on another machine.
        slot: The slot.
    """

    def __init__(self, folder: Path | None, slot: int) -> None:
        self._files: list[Path] = []
        self._count = 0
        self._due = 0.0  # monotonic time of the next draft
        if folder is None or not folder.is_dir():
            return
        self._files = [folder / "drafts" / f"slot-{slot}-{i}" for i in range(2)]

    @property
    def kept(self) -> bool:
        """Reports whether drafts are enabled."""
        return bool(self._files)

    def due(self) -> bool:
        """Reports whether another draft may be written, so that drafts take at most SHARE of the time."""
        return bool(self._files) and time.monotonic() >= self._due

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
        """Return the newest complete draft, or None."""
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
        """Delete the drafts and write no more of them."""
        self.drop()
        self._files = []
