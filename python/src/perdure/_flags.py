"""Flags that the slots of a DataParallel training send with each clock. The servers sum them up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .torch import _DIM

HEAD = 16  # values of a row of flags before those of the parameters: see Flags
LEAVING = 10  # the place in a row of flags that counts slots after their last step
_MOST_COMPARED = 256  # slots; float32 holds the sums of squares of so many bytes exactly


class Flags:
    """The layout of the flags of a clock, which the servers sum up.

    The values are the weight of the slot's gradients; 1, so that the sum counts the slots; the four bytes of a checksum
    and their squares; whether the slot has made its last step; and for each parameter whether the slot has a gradient.

    Args:
        count: The number of parameters.
        shards: The number of shards. A table needs a row for each.
    """

    def __init__(self, count: int, shards: int) -> None:
        self.rows = max(-(-(HEAD + count) // _DIM), shards)

    def written(self, weight: float, ready: Iterable[int], check: int) -> np.ndarray[Any, Any]:
        """Return the flags of one slot."""
        flags = np.zeros((self.rows, _DIM), np.float32)
        flat = flags.reshape(-1)
        parts = np.array([check >> 8 * i & 0xFF for i in range(4)], np.float32)
        flat[:2], flat[2:6], flat[6:10] = (weight, 1), parts, parts**2
        flat[[HEAD + i for i in ready]] = 1
        return flags

    def leaving(self) -> np.ndarray[Any, Any]:
        """Return the flags of a slot that has made its last step."""
        flags = np.zeros((self.rows, _DIM), np.float32)
        flags[0, LEAVING] = 1
        return flags

    @staticmethod
    def equal(flags: np.ndarray[Any, Any]) -> bool:
        """Reports whether all slots have sent the same checksum: the sum of squares is least for equal values."""
        senders = int(flags[1])
        if senders > _MOST_COMPARED:
            return True
        return all(senders * int(flags[6 + i]) == int(flags[2 + i]) ** 2 for i in range(4))
