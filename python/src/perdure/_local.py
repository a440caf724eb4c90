"""DTensors: tensors that are spread over the ranks of an island."""

from __future__ import annotations

import torch


def is_sharded(t: torch.Tensor) -> bool:
    """Reports whether a tensor is a DTensor."""
    return hasattr(t, "placements") and hasattr(t, "device_mesh")


def local(t: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this process has, without a gradient. It shares the tensor's memory."""
    return t.detach().to_local() if is_sharded(t) else t.detach()


def whole(t: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the values of all ranks. All ranks of the process group must call it for a DTensor."""
    return t.detach().full_tensor() if is_sharded(t) else t
