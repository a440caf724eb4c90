"""State that a program changes after the step, when it has been saved already."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

_OFTEN = 64  # saves that are all looked at; of later ones, each of so many
_LEAVES = 256  # numbers and tensors of a state that are looked at
_VALUES = 64  # of each of these tensors


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
    """Looks for averages of the weights, in ``state=``, that change between a save and the next backward pass.

    Positions in the data and counters may change there: the next step may have begun. An average of the weights that
    does was updated after the step. It looks at samples of the values, so that the cost is bounded.
    """

    def __init__(self, state: Sequence[Any], trained: int) -> None:
        self._state, self._trained = state, trained
        self._saves = 0
        self._saved: dict[int, int] | None = {}  # checksums of the states saved last; None: a warning was given

    def saved(self, states: Sequence[Any]) -> None:
        """Note the states that were saved, one for each object."""
        self._saves += 1
        if self._saved is None or (self._saves > _OFTEN and self._saves % _OFTEN):
            return
        self._saved = {
            i: _sample(state)
            for i, (of, state) in enumerate(zip(self._state, states, strict=True))
            if not isinstance(of, Optimizer) and _floating(state) >= self._trained
        }

    def compare(self) -> None:
        """Warn, once, of the first object that has changed since it was saved."""
        if not self._saved:
            return
        found = [i for i, check in self._saved.items() if _sample(self._state[i].state_dict()) != check]
        self._saved = {} if not found else None
        if found:
            warnings.warn(
                f"state={type(self._state[found[0]]).__name__} is changed after the step, when it has been saved "
                "already: a process that takes this slot over lacks its last change; change it between backward() and "
                "the step, or, with DiLoCo, in a hook that the optimizer has before DiLoCo is made "
                "(register_step_post_hook)",
                RuntimeWarning,
                stacklevel=2,
            )


def _leaves(state: Any) -> Iterator[Any]:
    if isinstance(state, dict):
        for of in state.values():
            yield from _leaves(of)
    elif isinstance(state, (list, tuple)):
        for of in state:
            yield from _leaves(of)
    else:
        yield state


def _floating(state: Any) -> int:
    """How many floating-point values are in tensors of a state."""
    return sum(t.numel() for t in _leaves(state) if isinstance(t, torch.Tensor) and t.is_floating_point())


def _sample(state: Any) -> int:
    check = 0
    for of, _ in zip(_leaves(state), range(_LEAVES), strict=False):
        if isinstance(of, torch.Tensor):
            values = of.detach().reshape(-1)[:_VALUES].cpu().contiguous()
            check = zlib.crc32(values.view(torch.uint8).numpy().data, check)
        else:
            check = zlib.crc32(repr(of).encode(), check)
    return check
