"""Memory that a program shares with its agent."""

from __future__ import annotations

import bisect
import fcntl
import mmap
import os

import numpy as np
from numpy.typing import NDArray

_ADD_SEALS = 1033  # F_ADD_SEALS
_SEAL_SHRINK = 2  # F_SEAL_SHRINK: the agent would die of a file that became shorter


class Region:
    """A piece of shared memory. ``address`` is where the agent finds it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.fd = os.memfd_create("perdure", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, _ADD_SEALS, _SEAL_SHRINK)
        self.bytes: NDArray[np.uint8] = np.frombuffer(mmap.mmap(self.fd, size), dtype=np.uint8)
        self.start = self.bytes.ctypes.data
        self.address = -1

    def close_file(self) -> None:
        """Close the file, which both have mapped by then. The memory stays."""
        os.close(self.fd)


class Regions:
    """All pieces that an agent knows, by where they lie in this process."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._regions: list[Region] = []
        self._by_address: dict[int, Region] = {}

    def add(self, region: Region) -> None:
        at = bisect.bisect(self._starts, region.start)
        self._starts.insert(at, region.start)
        self._regions.insert(at, region)
        self._by_address[region.address] = region

    def at(self, address: int) -> NDArray[np.uint8]:
        """The bytes of a piece of memory, by its address."""
        return self._by_address[address].bytes

    def address_of(self, array: NDArray[np.generic]) -> int:
        """Where the agent finds an array's values; -1: they are not in shared memory, or not in one piece."""
        if not array.flags.c_contiguous:
            return -1
        start = array.ctypes.data
        at = bisect.bisect(self._starts, start) - 1
        if at < 0:
            return -1
        region = self._regions[at]
        if start + array.nbytes > region.start + region.size:
            return -1
        return region.address + start - region.start
