"""State that a program changes after the step, when it has been saved already."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .errors import UsageError

_OFTEN = 64  # saves that are all looked at; of later ones, each of so many
_TENSORS = 256  # of a state that are looked at
_VALUES = 64  # of each of these


def is_loader(of: Any) -> bool:
    """Whether an object is a loader of data, or a sampler: to ask one for its state may start it."""
    return hasattr(of, "__iter__") and not isinstance(of, nn.Module)


def state_of(of: Any) -> Any:
    """The state of an object as it will be when the program's step is complete: for a GradScaler, after its update.

    The optimizer's step is a part of the scaler's, and programs call ``update`` after that.
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
    """Refuses averages of the weights, in ``state=``, that change between a save and the next backward pass.

    Positions in the data and counters may change there: the next step may have begun. An average of the weights that
    does was updated after the step. It looks at samples of the values, so that the cost is bounded. trained: the
    weights; an average of them has tensors of the same shapes.
    """

    def __init__(self, state: Sequence[Any], trained: Iterable[torch.Tensor]) -> None:
        self._state, self._trained = state, Counter(t.shape for t in trained)
        self._saves = 0
        self._saved: dict[int, int] = {}  # checksums of the states saved last

    def saved(self, states: Sequence[Any]) -> None:
        """Note the states that were saved, one for each object."""
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
                    f"state={type(self._state[i]).__name__} is changed after the step, when it has been saved already, "
                    "so a process that takes this slot over would lack its last change: change it between backward() "
                    "and the step, or, with DiLoCo, in a hook that the optimizer has before DiLoCo is made "
                    "(register_step_post_hook)"
                )

    def _sample(self, state: Any) -> int:
        check = 0
        tensors = (t for t in _floating(state) if t.shape in self._trained)
        for of, _ in zip(tensors, range(_TENSORS), strict=False):
            values = of.detach().reshape(-1)[:_VALUES].cpu().contiguous()
            check = zlib.crc32(values.view(torch.uint8).numpy().data, check)
        return check


def _floating(state: Any) -> Iterator[torch.Tensor]:
    """The floating-point tensors of a state."""
    if isinstance(state, torch.Tensor):
        if state.is_floating_point():
            yield state
    elif isinstance(state, dict):
        for of in state.values():
            yield from _floating(of)
    elif isinstance(state, (list, tuple)):
        for of in state:
            yield from _floating(of)
