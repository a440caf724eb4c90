"""Copies tensors from a GPU to pinned memory of this process, and waits once for all copies.

PyTorch waits for each copy to pageable memory separately. Copies to pinned memory run asynchronously.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Pinned:
    """Copies tensors from any device into a buffer that is reused. Not safe for concurrent use."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0)

    def here(self, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Return the tensors as float32 in this process's memory. None stays None.

        A tensor that already is float32 in this memory is returned without a copy. Copies from a GPU are valid until
        the next call.
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
                    place.copy_(t.detach().to(torch.float32), non_blocking=True)  # converted on the GPU
                    at += t.numel()
                    found.append(place)
                else:
                    found.append(t.detach().to("cpu", torch.float32))
            self.wait_for(away)
        return found

    def _is_away(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.is_cuda)

    def _allocate(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.float32, pin_memory=True)

    def wait_for(self, tensors: Sequence[torch.Tensor]) -> None:
        """Wait for the work of this thread on the GPUs of the tensors."""
        for device in {t.device for t in tensors if self._is_away(t)}:
            torch.cuda.current_stream(device).synchronize()
