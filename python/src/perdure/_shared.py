"""Memory shared between a program and its agent."""

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
_SEAL_SHRINK = 2  # F_SEAL_SHRINK: if the file shrank, the agent would die of SIGBUS

_MOST_KNOWN = 64  # max cached mappings; each holds a file descriptor


class Region:
    """A piece of shared memory: its address in this process, and its address in the agent."""

    def __init__(self, start: int, size: int, address: int) -> None:
        self.start, self.size, self.address = start, size, address
        self.dead = False  # no array refers to it any more, so its address range may be reused


def _memory(size: int) -> int:
    """Create a shared memory file that cannot shrink."""
    fd = os.memfd_create("perdure", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, _ADD_SEALS, _SEAL_SHRINK)
    return fd


class Loans:
    """Memory that the agent lends to the program, in one file that the agent extends."""

    def __init__(self) -> None:
        self.fd = _memory(0)
        self._known: dict[int, NDArray[np.uint8]] = {}  # mappings by offset: mapping again costs as much as a copy
        self._gone = 0  # number of pieces that the agent had returned to the system at the last call
        self._changing = threading.Lock()

    def piece(self, place: int, size: int, gone: int) -> NDArray[np.uint8]:
        """Return the memory at an offset of the file. gone counts the pieces that the agent returned to the system."""
        with self._changing:
            if gone != self._gone:  # any of the mappings may be stale
                self._known.clear()
                self._gone = gone
            known = self._known.pop(place, None)
            if known is None:
                known = np.frombuffer(mmap.mmap(self.fd, size, offset=place), dtype=np.uint8)
            self._known[place] = known  # inserted last, as the most recently used
            if len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            return known


class Lot:
    """Shared memory that exists as long as an array refers to it. fd: a file of that size; None creates one."""

    def __init__(self, size: int, fd: int | None = None) -> None:
        self.size = size
        self.fd = _memory(size) if fd is None else fd
        self.map = mmap.mmap(self.fd, size)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self.map, dtype=np.uint8)
        self.address = -1

    def close_file(self) -> None:
        """Close the file once both processes have mapped it. The memory remains."""
        os.close(self.fd)


class Regions:
    """All regions that the agent has mapped. ``gone`` lists those without arrays, which the agent must unmap."""

    def __init__(self) -> None:
        self._sorted: list[tuple[int, Region]] = []  # replaced as a whole, so readers need no lock
        self._changing = threading.Lock()
        self.gone: list[Region] = []

    def add(self, lot: Lot) -> None:
        region = Region(lot.bytes.ctypes.data, lot.size, lot.address)
        with self._changing:
            self._sorted = sorted([*self._sorted, (region.start, region)], key=lambda r: r[0])
        # Views keep their base array alive. The finalizer runs before the memory is freed, and at any time.
        weakref.finalize(lot.bytes, self._lose, region)

    def _lose(self, region: Region) -> None:
        region.dead = True
        self.gone.append(region)

    def remove(self, region: Region) -> None:
        with self._changing:
            self._sorted = [r for r in self._sorted if r[1] is not region]

    def address_of(self, array: NDArray[np.generic]) -> int:
        """Return the agent's address of an array's values, or -1 if they are not contiguous in shared memory."""
        if not array.flags.c_contiguous:
            return -1
        start, known = array.ctypes.data, self._sorted
        at = bisect.bisect_right(known, start, key=lambda r: r[0]) - 1
        while at >= 0 and known[at][1].dead:
            at -= 1
        if at < 0:
            return -1
        region = known[at][1]  # live regions do not overlap
        if start + array.nbytes > region.start + region.size:
            return -1
        return region.address + start - region.start
