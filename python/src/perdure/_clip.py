"""Refuses torch.nn.utils.clip_grad_norm_ for parameters whose gradients are averaged later."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn import utils

from .errors import UsageError

SAYS = (
    "clips this slot's own gradient, and not the average of all, which is made by step; clip rows of the average by a "
    "rule's clip_norm, such as perdure.SGD(0.1, clip_norm=1.0), or train by DiLoCo"
)

_NAMES = ("clip_grad_norm_", "clip_grad_value_")


def refuse(parameters: Iterable[torch.Tensor]) -> Callable[[], None]:
    """Have them raise UsageError where they are given one of parameters, until what is returned is called.

    They are refused where a program asks torch.nn.utils for them, which is how nearly all do.
    """
    ours = {id(p) for p in parameters}
    were = {name: getattr(utils, name) for name in _NAMES}

    def instead(name: str) -> Callable[..., Any]:
        def clip(parameters: Any, *args: Any, **more: Any) -> Any:
            of = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            if any(id(p) in ours for p in of):
                raise UsageError(f"{name} {SAYS}")
            return were[name](of, *args, **more)

        return clip

    now = {name: instead(name) for name in _NAMES}
    for name, clip in now.items():
        setattr(utils, name, clip)

    def restore() -> None:
        for name, clip in now.items():
            if getattr(utils, name) is clip:  # else somebody has changed it since
                setattr(utils, name, were[name])

    return restore
