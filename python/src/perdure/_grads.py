"""Detects gradients that a program changes between the backward pass and the step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from .errors import UsageError

SAYS = (
    "changes this slot's own gradient, not the average, which step computes later; clip rows of the average with a "
    "rule's clip_norm, such as perdure.SGD(0.1, clip_norm=1.0), or use DiLoCo; instead of dividing gradients, scale "
    "the loss"
)


class Gradients:
    """Records each gradient's version after a backward pass, and compares it before the next one and in the step.

    Changes through ``grad.data``, which have no version, and changes inside hooks of the program are not detected.

    Args:
        named: The trained parameters, by name.
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        self._of = [(name, weakref.ref(p)) for name, p in named]  # hooks must not keep the model alive
        self._recorded: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._changed: set[int] = set()  # parameters whose gradient had changed when a later backward pass began

    def hook(self) -> Callable[[], None]:
        """Start recording. Return a function that stops it."""
        hooks = []
        for i, (_, ref) in enumerate(self._of):
            if (p := ref()) is not None:
                hooks.append(p.register_hook(lambda _, i=i: self._before(i)))
                hooks.append(p.register_post_accumulate_grad_hook(lambda p, i=i: self._after(i, p)))

        def remove() -> None:
            for hook in hooks:
                hook.remove()

        return remove

    def _before(self, i: int) -> None:
        p = self._of[i][1]()
        if p is None or p.grad is None:  # an earlier gradient was discarded
            self._changed.discard(i)
        elif self._has_changed(i):
            self._changed.add(i)

    def _after(self, i: int, p: torch.Tensor) -> None:
        if p.grad is not None:
            self._recorded[i] = weakref.ref(p.grad), p.grad._version

    def _has_changed(self, i: int) -> bool:
        """Reports whether a gradient has changed since it was recorded. A gradient of zeros was discarded."""
        p = self._of[i][1]()
        now: Any = None if p is None else p.grad
        if now is None or now.layout != torch.strided:
            return False
        was, version = self._recorded.get(i, (None, 0))
        if was is None or (version == now._version and was() is now):
            return i in self._changed
        return bool(now.any())

    def check(self) -> None:
        """Raise UsageError if the program has changed a gradient since the backward pass that computed it."""
        for i, (name, _) in enumerate(self._of):
            if self._has_changed(i):
                raise UsageError(
                    f"the gradient of {name} has changed since backward(), as by clip_grad_norm_: that {SAYS}"
                )

    def stepped(self) -> None:
        """Forget the gradients, which the step has sent."""
        self._recorded.clear()
        self._changed.clear()
