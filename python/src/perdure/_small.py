"""The small values of a state, such as counters and learning rates, without its large tensors."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from ._local import local
from ._state import Shard
from .torch import Stateful

_SMALL = 16  # max number of values of a tensor that is saved with each update
_LARGE = "perdure: not saved"


def rates_of(optimizers: Sequence[Optimizer]) -> list[list[dict[str, Any]]]:
    """Return the settings of all parameter groups, such as learning rates."""
    return [[{k: v for k, v in group.items() if k != "params"} for group in of.param_groups] for of in optimizers]


def small_of(of: Stateful) -> Any:
    """Return an object's state without large tensors, or None for a module, which has nothing else."""
    return None if isinstance(of, nn.Module) else copy.deepcopy(_without_large(of.state_dict()))


def _without_large(state: Any) -> Any:
    if isinstance(state, (torch.Tensor, np.ndarray)):
        return state if math.prod(state.shape) <= _SMALL else _LARGE
    if isinstance(state, dict):
        return type(state)({key: _without_large(of) for key, of in state.items()})
    if isinstance(state, (list, tuple)):
        return type(state)(_without_large(of) for of in state)
    return state


def merged(small: Any, state: Any) -> Any:
    """Return a state with the values of small, where it has them."""
    if isinstance(small, str) and small == _LARGE:
        return state
    if isinstance(small, dict):
        known = state if isinstance(state, dict) else {}
        return type(small)({key: merged(of, known.get(key)) for key, of in small.items()})
    if isinstance(small, (list, tuple)):
        items = state if isinstance(state, (list, tuple)) and len(state) == len(small) else [None] * len(small)
        return type(small)(merged(of, was) for of, was in zip(small, items, strict=True))
    return small


def copied(state: Any, into: Any) -> Any:
    """Return a state whose tensors are copies: those of an object's present state, where they fit, or new ones."""
    if isinstance(state, torch.Tensor):
        fits = isinstance(into, torch.Tensor) and (into.shape, into.dtype) == (state.shape, state.dtype)
        with torch.no_grad():
            return into.copy_(state) if fits and into.is_contiguous() else state.clone()
    if isinstance(state, Shard):
        return Shard(copied(state.local, None if into is None else local(into)))
    if isinstance(state, dict):
        known = into if isinstance(into, dict) else {}
        return type(state)({key: copied(of, known.get(key)) for key, of in state.items()})
    if isinstance(state, (list, tuple)):
        items = into if isinstance(into, (list, tuple)) and len(into) == len(state) else [None] * len(state)
        return type(state)(copied(of, was) for of, was in zip(state, items, strict=True))
    return state
