"""Makes torch.nn.utils.clip_grad_norm_ raise UsageError for parameters whose gradients are averaged later."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn import utils

from .errors import UsageError

SAYS = (
    "clips this slot's own gradient, not the average, which step computes later; clip rows of the average with a "
    "rule's clip_norm, such as perdure.SGD(0.1, clip_norm=1.0), or use DiLoCo"
)

_NAMES = ("clip_grad_norm_", "clip_grad_value_")

#: Parameters for which clipping raises, by id. A new tensor may reuse the id of one that was deleted.
_refused: dict[int, weakref.ref[torch.Tensor]] = {}

#: For each name the function of torch.nn.utils and its replacement.
_replaced: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}


def refuse(parameters: Iterable[torch.Tensor]) -> Callable[[], None]:
    """Make the clipping functions of torch.nn.utils raise UsageError for these parameters.

    Only programs that look the functions up in torch.nn.utils are affected, as nearly all do.

    Args:
        parameters: The parameters.

    Returns:
        A function that allows clipping again.
    """
    ours = {id(p): weakref.ref(p, functools.partial(_forget, id(p))) for p in parameters}
    _refused.update(ours)
    if not _replaced:
        for name in _NAMES:
            was = getattr(utils, name)
            _replaced[name] = was, _refusing(name, was)
            setattr(utils, name, _replaced[name][1])

    def restore() -> None:
        for number, of in ours.items():
            _forget(number, of)

    return restore


def _forget(number: int, of: weakref.ref[torch.Tensor]) -> None:
    """Allow clipping of a parameter again. After the last one, restore the functions of torch.nn.utils."""
    if _refused.get(number) is of:
        del _refused[number]
    if not _refused:
        for name, (was, now) in _replaced.items():
            if getattr(utils, name) is now:  # otherwise another library has replaced it since
                setattr(utils, name, was)
        _replaced.clear()


def _refusing(name: str, was: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(was)
    def clip(parameters: Any, *args: Any, **more: Any) -> Any:
        of = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if any((ref := _refused.get(id(p))) is not None and ref() is p for p in of):
            raise UsageError(f"{name} {SAYS}")
        return was(of, *args, **more)

    return clip
