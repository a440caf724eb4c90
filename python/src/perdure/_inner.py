"""The inner optimizers of DiLoCo: which parameters they have, when a step is complete, how their states are loaded."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from . import _state
from ._frozen import NOT_TRAINED, named_parameters
from .errors import UsageError


class Inner:
    """The optimizers of one learner, in the order in which they step. The step of the last one completes a step."""

    def __init__(
        self, inner: Optimizer | Sequence[Optimizer], model: nn.Module, named: dict[str, nn.Parameter]
    ) -> None:
        self.optimizers = [_unwrapped(of) for of in ([inner] if isinstance(inner, Optimizer) else inner)]
        self._stepped = False  # whether a step has been completed
        self._named, self._model = named, model
        self._seen: set[int] = set()  # optimizers that have stepped before the last one did for the first time
        self._hooks: list[Any] = []
        if not self.optimizers:
            raise UsageError("inner is an empty list: give the optimizer of the model's parameters")
        for of in self.optimizers:
            _refuse_averaging(of)
        self._refuse_parameters()
        self._sizes = self._count()

    def hook(self, complete: Callable[[], None]) -> None:
        """Have complete called after each complete step."""

        # A compiled step calls it without tracing it: dynamo does not know the calls to the job.
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def after(number: int) -> None:
            if _is_nested(self.optimizers[number]):
                return
            if number < len(self.optimizers) - 1:
                self._seen.add(number)
                return
            first, self._stepped = not self._stepped, True
            if first:
                self._refuse_order()
                for of in self.optimizers:
                    _state.Checked(of.state_dict(), f"the state of {type(of).__name__}")
            if self._count() != self._sizes:
                self._refuse_parameters()
                raise UsageError("a group of parameters was added to the inner optimizer; list all when it is made")
            complete()

        for number, of in enumerate(self.optimizers):
            self._hooks.append(of.register_step_post_hook(lambda *_, number=number: after(number)))

    def unhook(self) -> None:
        """Let the optimizers step by themselves again."""
        for hook in self._hooks:
            hook.remove()

    def says(self) -> str:
        """The names of the optimizers' types."""
        return " and ".join(dict.fromkeys(type(of).__name__ for of in self.optimizers))

    def _count(self) -> list[int]:
        return [len(group["params"]) for of in self.optimizers for group in of.param_groups]

    def _refuse_parameters(self) -> None:
        """Raise UsageError unless each trained parameter of the model is in one of the optimizers."""
        lacks = {p: name for name, p in self._named.items()}
        every = {p: name for name, p in named_parameters(self._model)}
        seen = set()
        for of in self.optimizers:
            for p in (p for group in of.param_groups for p in group["params"]):
                if p in seen:
                    raise UsageError(f"{every.get(p, 'a parameter')} is in two of the inner optimizers; give it to one")
                seen.add(p)
                if lacks.pop(p, None) is None and p.requires_grad:
                    if p not in every:
                        raise UsageError("the inner optimizer has parameters that the model does not train")
                    raise UsageError(f"{every[p]} {NOT_TRAINED}")
        if lacks:
            names = list(lacks.values())
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise UsageError(
                f"the inner optimizer lacks {', '.join(names[:3])}{more}, which the model trains: add what is missing, "
                "list all optimizers (inner=[muon, adamw]), or call requires_grad_(False) on it before"
            )

    def _refuse_order(self) -> None:
        """Raise UsageError where an optimizer is about to step after the last one of the list."""
        for number, of in enumerate(self.optimizers[:-1]):
            if number in self._seen:
                continue
            grads = [p.grad for group in of.param_groups for p in group["params"] if p.grad is not None]
            values = (g.coalesce().values() if g.is_sparse else g for g in grads)
            # A GradScaler leaves a step out whose gradients have NaN or Inf.
            if grads and all(bool(torch.isfinite(v).all()) for v in values):
                last = type(self.optimizers[-1]).__name__
                raise UsageError(
                    f"{last} has stepped before {type(of).__name__}, number {number} of inner=: list the optimizers in "
                    "the order in which they step, since the outer step follows the last one"
                )


def _is_nested(of: Optimizer) -> bool:
    """Whether the step of an optimizer that has ended was called by that of a subclass: each calls the hooks."""
    if sum(getattr(vars(kind).get("step"), "hooked", False) for kind in type(of).__mro__) < 2:
        return False
    frame, steps = sys._getframe(1), 0
    while frame is not None and steps < 2:
        code = frame.f_code
        if code.co_filename == sys.modules[Optimizer.__module__].__file__ and code.co_name == "wrapper":
            steps += frame.f_locals.get("self") is of
        frame = frame.f_back  # type: ignore[assignment]
    return steps == 2


def load(of: Any, state: Any) -> None:
    """Have an object take a state that was saved over. An optimizer's tensors get the types back that they had.

    ``Optimizer.load_state_dict`` makes them those of the parameters.
    """
    of.load_state_dict(state)
    if not isinstance(of, Optimizer):
        return
    _retype(of.state_dict().get("state"), state.get("state"))
    differs = _retype(of.state_dict().get("state"), state.get("state"))
    if differs is not None:  # its state_dict gives copies
        warnings.warn(
            f"{type(of).__name__} has loaded its state as another type than it was saved ({differs}): training "
            "continues with that type",
            RuntimeWarning,
            stacklevel=2,
        )


def _retype(now: Any, saved: Any, path: str = "state") -> str | None:
    """Replace tensors of another type by the saved ones. Returns the path of one."""
    found = None
    if isinstance(saved, dict) and isinstance(now, dict):
        places = [key for key in saved if key in now]
    elif isinstance(now, list):
        places = list(range(min(len(now), len(saved))))
    else:
        return None
    for key in places:
        of, was, where = now[key], saved[key], f"{path}[{key!r}]"
        if isinstance(of, torch.Tensor) and isinstance(was, torch.Tensor) and of.dtype != was.dtype:
            now[key] = was.to(of.device)
            found = f"{where}: {was.dtype}, now {of.dtype}"
        elif isinstance(was, tuple):
            items = list(of)
            found = _retype(items, was, where) or found
            now[key] = tuple(items)
        elif isinstance(was, (dict, list)):
            found = _retype(of, was, where) or found
    return found


def _unwrapped(of: Any) -> Optimizer:
    """An optimizer without a wrapper that has no hooks, such as accelerate's."""
    while not hasattr(of, "_optimizer_step_post_hooks"):
        _refuse_averaging(of, wrapper=True)
        of = getattr(of, "optimizer", None)
        if of is None:
            raise UsageError(
                "inner is not an optimizer of torch.optim, and calls no hooks after its step: give the optimizer that "
                "it wraps"
            )
    assert isinstance(of, Optimizer)
    return of


def _refuse_averaging(of: Any, wrapper: bool = False) -> None:
    """Refuse optimizers that keep a copy of the weights in their state, which an outer step would not change."""
    name = type(of).__name__
    # schedulefree's have these; accelerate's wrapper has them in any case.
    modes = not wrapper and callable(getattr(of, "train", None)) and callable(getattr(of, "eval", None))
    if modes or "lookahead" in name.lower():
        raise UsageError(
            f"{name} keeps a copy of the weights in its state, which an outer step does not change: take an optimizer "
            "without one, such as torch.optim.AdamW"
        )


def refuse_schedulers(schedulers: Sequence[Any]) -> None:
    """Refuse schedulers that cannot be stepped after each step of an optimizer."""
    for of in schedulers:
        if type(of).__name__ in ("ReduceLROnPlateau", "GreedyLR"):
            raise UsageError(
                f"{type(of).__name__} goes by evaluations, which are not repeated after a restart; take a scheduler "
                "that goes by steps"
            )
