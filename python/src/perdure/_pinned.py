"""Values of tensors that lie on a GPU, in this process's memory: all at once, and waited for once.

A copy to memory that may be swapped is waited for, tensor by tensor. To pinned memory copies go while the program goes
on to the next one, and all are waited for together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Pinned:
    """Brings tensors of any device here, by a buffer that is kept for the next time. It is for one thread."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0)

    def here(self, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The values of tensors, as tensors of float32 in this process's memory; None stays None.

        What is here already as float32 is returned as it is, and not copied. What lay on a GPU may be read until the
        next call.
        """
        away = [t for t in tensors if t is not None and self._is_away(t)]
        count = sum(t.numel() for t in away)
        if count > self._buffer.numel():
            self._buffer = self._allocate(count)
        found: list[torch.Tensor | None] = []
        at = 0
        with torch.no_grad():
            for t in tensors:
                if t is None:
                    found.append(None)
                elif self._is_away(t):
                    place = self._buffer[at : at + t.numel()].view(t.shape)
                    place.copy_(t.detach().to(torch.float32), non_blocking=True)  # made float32 where it lies
                    at += t.numel()
                    found.append(place)
                else:
                    found.append(t.detach().to("cpu", torch.float32))
            self._wait_for(away)
        return found

    def _is_away(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.is_cuda)

    def _allocate(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.float32, pin_memory=True)

    def _wait_for(self, tensors: Sequence[torch.Tensor]) -> None:
        for device in {t.device for t in tensors}:
            torch.cuda.current_stream(device).synchronize()
