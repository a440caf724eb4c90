"""Memory that a program shares with its agent."""

from __future__ import annotations

import bisect
import fcntl
import mmap
import os
import threading
import weakref

import numpy as np
from numpy.typing import NDArray

_ADD_SEALS = 1033  # F_ADD_SEALS
_SEAL_SHRINK = 2  # F_SEAL_SHRINK: the agent would die of a file that became shorter

_MOST_KNOWN = 64  # each is a file to the system


class Region:
    """A piece of shared memory: where it lies in this process, and where the agent finds it."""

    def __init__(self, start: int, size: int, address: int) -> None:
        self.start, self.size, self.address = start, size, address
        self.dead = False  # nobody has an array of it: what lies there now is something else


def _memory(size: int) -> int:
    """A file of shared memory, which does not become shorter."""
    fd = os.memfd_create("perdure", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, _ADD_SEALS, _SEAL_SHRINK)
    return fd


class Loans:
    """Memory that the agent lends, in one file, which the agent makes longer."""

    def __init__(self) -> None:
        self.fd = _memory(0)
        self._known: dict[int, NDArray[np.uint8]] = {}  # pieces by their place; to map one anew costs what loans save
        self._gone = 0  # how many pieces the agent had given back to the system when this was last known
        self._changing = threading.Lock()

    def piece(self, place: int, size: int, gone: int) -> NDArray[np.uint8]:
        """The memory at a place of the file."""
        with self._changing:
            if gone != self._gone:  # whichever it was
                self._known.clear()
                self._gone = gone
            known = self._known.pop(place, None)
            if known is None:
                known = np.frombuffer(mmap.mmap(self.fd, size, offset=place), dtype=np.uint8)
            self._known[place] = known  # the newest is the last
            if len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            return known


class Lot:
    """A region with its memory, which lives as long as anybody has an array of it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.fd = _memory(size)
        self.map = mmap.mmap(self.fd, size)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self.map, dtype=np.uint8)
        self.address = -1

    def close_file(self) -> None:
        """Close the file, which both have mapped by then. The memory stays."""
        os.close(self.fd)


class Regions:
    """All pieces that an agent knows. Those that nobody has any more are in ``gone``: the agent is to be told."""

    def __init__(self) -> None:
        self._sorted: list[tuple[int, Region]] = []  # replaced as a whole: who reads it needs no lock
        self._changing = threading.Lock()
        self.gone: list[Region] = []

    def add(self, lot: Lot) -> None:
        region = Region(lot.bytes.ctypes.data, lot.size, lot.address)
        with self._changing:
            self._sorted = sorted([*self._sorted, (region.start, region)], key=lambda r: r[0])
        # Views of an array have it for their base. That it is gone is told before its memory is, and at any time.
        weakref.finalize(lot.bytes, self._lose, region)

    def _lose(self, region: Region) -> None:
        region.dead = True
        self.gone.append(region)

    def remove(self, region: Region) -> None:
        with self._changing:
            self._sorted = [r for r in self._sorted if r[1] is not region]

    def address_of(self, array: NDArray[np.generic]) -> int:
        """Where the agent finds an array's values; -1: they are not in shared memory, or not in one piece."""
        if not array.flags.c_contiguous:
            return -1
        start, known = array.ctypes.data, self._sorted
        at = bisect.bisect_right(known, start, key=lambda r: r[0]) - 1
        while at >= 0 and known[at][1].dead:
            at -= 1
        if at < 0:
            return -1
        region = known[at][1]  # those that live do not overlap
        if start + array.nbytes > region.start + region.size:
            return -1
        return region.address + start - region.start
