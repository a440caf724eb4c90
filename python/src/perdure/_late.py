"""Detects state that a program changes after the step, which has saved it already."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ._local import local
from .errors import UsageError

_OFTEN = 64  # the first 64 saves are all checked, then every 64th
_TENSORS = 256  # max tensors checked per state
_VALUES = 64  # max values checked per tensor


def is_loader(of: Any) -> bool:
    """Reports whether an object is a data loader or a sampler. Asking one for its state may start it."""
    return hasattr(of, "__iter__") and not isinstance(of, nn.Module)


def state_of(of: Any) -> Any:
    """Return an object's state as it will be when the program's step is complete.

    For a GradScaler that is the state after its update. The scaler calls the optimizer's step, and programs call the
    scaler's ``update`` only after that.
    """
    if not isinstance(of, torch.amp.GradScaler) or not of.is_enabled():
        return of.state_dict()
    pending = of._per_optimizer_states
    if not any(state["found_inf_per_device"] for state in pending.values()):
        return of.state_dict()
    before = of.state_dict()
    of.update()
    after = of.state_dict()
    of.load_state_dict(before)
    of._per_optimizer_states = pending
    return after


class Late:
    """Rejects averages of the weights, in ``state=``, that change between a save and the next backward pass.

    Positions in the data and counters may change then, since the next step may have begun. But an average of the
    weights that changes then was updated after the step. The check compares a sample of the values, to bound its cost.

    Args:
        state: The objects in ``state``.
        trained: The weights. An average of them has tensors of the same shapes.
    """

    def __init__(self, state: Sequence[Any], trained: Iterable[torch.Tensor]) -> None:
        self._state, self._trained = state, Counter(t.shape for t in trained)
        self._saves = 0
        self._saved: dict[int, int] = {}  # checksums of the last saved states

    def saved(self, states: Sequence[Any]) -> None:
        """Record the saved states, one per object."""
        self._saves += 1
        if self._saves > _OFTEN and self._saves % _OFTEN:
            return
        self._saved = {
            i: self._sample(state)
            for i, (of, state) in enumerate(zip(self._state, states, strict=True))
            if not isinstance(of, Optimizer) and self._trained <= Counter(t.shape for t in _floating(state))
        }

    def compare(self) -> None:
        """Raise UsageError for the first object that has changed since it was saved."""
        saved, self._saved = self._saved, {}
        for i, check in saved.items():
            if self._sample(self._state[i].state_dict()) != check:
                raise UsageError(
                    f"state={type(self._state[i]).__name__} is changed after the step, which has saved it already, so "
                    "a replacement process of this slot would lack its last change: change it between backward() and "
                    "the step, or, with DiLoCo, in a hook registered before creating DiLoCo "
                    "(register_step_post_hook)"
                )

    def _sample(self, state: Any) -> int:
        check = 0
        tensors = (t for t in _floating(state) if t.shape in self._trained)
        for of, _ in zip(tensors, range(_TENSORS), strict=False):
            values = local(of).reshape(-1)[:_VALUES].cpu().contiguous()
            check = zlib.crc32(values.view(torch.uint8).numpy().data, check)
        return check


def _floating(state: Any) -> Iterator[torch.Tensor]:
    """Yield the floating-point tensors of a state."""
    if isinstance(state, torch.Tensor):
        if state.is_floating_point():
            yield state
    elif isinstance(state, dict):
        for of in state.values():
            yield from _floating(of)
    elif isinstance(state, (list, tuple)):
        for of in state:
            yield from _floating(of)
