"""Reads the tensors of a dense table in pieces, so that a process needs no second copy of all of them."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

import torch

from .job import Floats, Job, Share, Table
from .torch import _DIM, _Rows

PIECE = 32 << 20  # max bytes of a piece


class Pieces:
    """Memory for one piece of a table, shared with the agent.

    All pieces have nearly the same size, because the agent would cache the rows of a very small one.

    Args:
        job: The job.
        rows: The layout of the tensors in the table.
        whole: Shared memory for all rows, which then keep their values. None: each piece replaces the last one.
    """

    def __init__(self, job: Job, rows: _Rows, whole: Floats | None = None) -> None:
        self._rows, self._whole = rows, whole
        count = -(-rows.rows * _DIM * 4 // PIECE)
        self._bounds = [rows.rows * i // count for i in range(count + 1)]
        self._values = job.empty((-(-rows.rows // count), _DIM)) if whole is None else whole

    def read(self, table: Table, share: Share) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the first row of each piece, and its values, which the next piece may replace.

        Args:
            table: The table.
            share: The slots begin with different pieces, so that they read from different servers at the same time.
        """
        count = len(self._bounds) - 1
        for i in range(count):
            at = (i + share.rank * count // share.of) % count
            first, end = self._bounds[at : at + 2]
            values = self._values[: end - first] if self._whole is None else self._whole[first:end]
            table.get_run(first, end - first, out=values)
            yield first, torch.from_numpy(values.reshape(-1))

    def parts(self, first: int, values: torch.Tensor) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yield the number of each tensor that has values in a piece, the position of these in it, and the values.

        Args:
            first: The first row of the piece.
            values: The values of the piece.
        """
        starts, end = self._rows.starts, first + len(values) // _DIM
        i = bisect.bisect_right(starts, first) - 1
        while i < len(self._rows.tensors) and starts[i] < end:
            at = max(0, first - starts[i]) * _DIM
            last = min(self._rows.tensors[i].numel(), (end - starts[i]) * _DIM)
            if at < last:
                begin = (starts[i] - first) * _DIM + at
                yield i, at, values[begin : begin + last - at]
            i += 1

    def take(self, table: Table, share: Share) -> None:
        """Write the values of the table into the tensors."""
        with torch.no_grad():
            for first, values in self.read(table, share):
                for i, at, part in self.parts(first, values):
                    for to, of in placed(self._rows.tensors[i], at, part):
                        to.copy_(of)


def placed(tensor: torch.Tensor, at: int, values: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield views of a tensor, and the values that belong there, in the same shape.

    Args:
        tensor: The tensor, with any strides.
        at: The position of the first value, counted as if the tensor were contiguous.
        values: Consecutive values.
    """
    if len(values) == tensor.numel():
        yield tensor, values.view(tensor.shape)
    elif tensor.is_contiguous():
        yield tensor.view(-1)[at : at + len(values)], values
    else:
        each = tensor[0].numel()
        while len(values):
            row, skip = divmod(at, each)
            whole = 0 if skip else len(values) // each
            used = whole * each or min(each - skip, len(values))
            if whole:
                yield tensor[row : row + whole], values[:used].view(whole, *tensor.shape[1:])
            else:
                yield from placed(tensor[row], skip, values[:used])
            at, values = at + used, values[used:]
