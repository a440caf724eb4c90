"""The inner optimizers of DiLoCo: checks of their parameters and order, and loading of their states."""

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
from ._local import is_sharded, local
from .errors import UsageError


class Inner:
    """The inner optimizers of this process, in the order in which they step. The last one completes a step."""

    def __init__(
        self, inner: Optimizer | Sequence[Optimizer], model: nn.Module, named: dict[str, nn.Parameter]
    ) -> None:
        self.optimizers = [_unwrapped(of) for of in ([inner] if isinstance(inner, Optimizer) else inner)]
        self._stepped = False  # whether a step has been completed
        self._named, self._model = named, model
        self._seen: set[int] = set()  # optimizers that stepped before the first step of the last one
        self._hooks: list[Any] = []
        if not self.optimizers:
            raise UsageError("inner is an empty list: pass the optimizer of the model's parameters")
        for of in self.optimizers:
            _refuse_averaging(of)
        self._refuse_parameters()
        self._sizes = self._count()

    def hook(self, complete: Callable[[], None]) -> None:
        """Register complete to be called after each complete step."""

        # Dynamo must not trace this function, since it cannot trace the calls to the job.
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
                raise UsageError("a parameter group was added to the inner optimizer; pass all groups when creating it")
            complete()

        for number, of in enumerate(self.optimizers):
            self._hooks.append(of.register_step_post_hook(lambda *_, number=number: after(number)))

    def unhook(self) -> None:
        """Remove the hooks from the optimizers."""
        for hook in self._hooks:
            hook.remove()

    def says(self) -> str:
        """Return the names of the optimizers' types."""
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
                    raise UsageError(f"{every.get(p, 'a parameter')} is in two inner optimizers; pass it to only one")
                seen.add(p)
                if lacks.pop(p, None) is None and p.requires_grad:
                    if p not in every:
                        raise UsageError(
                            "the inner optimizer has parameters that the model does not train; pass only the model's"
                        )
                    raise UsageError(f"{every[p]} {NOT_TRAINED}")
        if lacks:
            names = list(lacks.values())
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise UsageError(
                f"the inner optimizer lacks {', '.join(names[:3])}{more}, which the model trains: add them, list all "
                "optimizers (inner=[muon, adamw]), or freeze them with requires_grad_(False)"
            )

    def _refuse_order(self) -> None:
        """Raise UsageError if an optimizer with gradients has not stepped before the last one of the list."""
        for number, of in enumerate(self.optimizers[:-1]):
            if number in self._seen:
                continue
            grads = [p.grad for group in of.param_groups for p in group["params"] if p.grad is not None]
            values = (g.coalesce().values() if g.is_sparse else g for g in grads)
            # A GradScaler skips steps whose gradients contain NaN or Inf.
            if grads and all(bool(torch.isfinite(local(v)).all()) for v in values):
                last = type(self.optimizers[-1]).__name__
                raise UsageError(
                    f"{last} stepped before {type(of).__name__}, number {number} in inner=: list the optimizers in the "
                    "order in which they step, since the outer step follows the last one"
                )


def _is_nested(of: Optimizer) -> bool:
    """Reports whether a subclass's step called the step that has just ended. Each of them calls the hooks."""
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
    """Load a saved state into an object, and restore the saved types of an optimizer's tensors.

    ``Optimizer.load_state_dict`` converts them to the types of the parameters.
    """
    if not isinstance(of, Optimizer):
        of.load_state_dict(state)
        return
    _join_shards(of, state)
    of.load_state_dict(state)
    _retype(of.state_dict().get("state"), state.get("state"))
    differs = _retype(of.state_dict().get("state"), state.get("state"))
    if differs is not None:  # its state_dict returns copies, so replacing them had no effect
        warnings.warn(
            f"{type(of).__name__} has loaded its state with a different type than it was saved with ({differs}): "
            "training continues with that type",
            RuntimeWarning,
            stacklevel=2,
        )


def _join_shards(of: Optimizer, state: dict[str, Any]) -> None:
    """Replace the local parts of DTensors in a saved state by DTensors that are laid out like their parameters."""
    params = (p for group in of.param_groups for p in group["params"])
    for i, p in zip((i for group in state["param_groups"] for i in group["params"]), params, strict=False):
        entry = state["state"].get(i, {})
        for name, value in entry.items():
            if not isinstance(value, _state.Shard):
                continue
            here = local(p)
            if not is_sharded(p) or value.local.shape != here.shape:
                raise UsageError(
                    f"this rank has saved {name} of {type(of).__name__} for parameter {i} with the local shape "
                    f"{list(value.local.shape)}, but has {list(here.shape)} now; shard the model as before, or start a "
                    "new job with the exported model"
                )
            entry[name] = type(p.data).from_local(
                value.local.to(here.device),
                p.device_mesh,
                p.placements,
                run_check=False,
                shape=p.shape,
                stride=p.stride(),
            )


def _retype(now: Any, saved: Any, path: str = "state") -> str | None:
    """Replace tensors whose type differs from the saved one. Return a description of one of them, or None."""
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
    """Return the optimizer inside wrappers that have no hooks, such as accelerate's."""
    while not hasattr(of, "_optimizer_step_post_hooks"):
        _refuse_averaging(of, wrapper=True)
        of = getattr(of, "optimizer", None)
        if of is None:
            raise UsageError(
                "inner is not an optimizer of torch.optim and calls no hooks after its step: pass the optimizer that "
                "it wraps"
            )
    assert isinstance(of, Optimizer)
    return of


def _refuse_averaging(of: Any, wrapper: bool = False) -> None:
    """Raise UsageError for optimizers whose state contains a copy of the weights: an outer step does not change it."""
    name = type(of).__name__
    # The optimizers of schedulefree have these methods. accelerate's wrapper always has them.
    modes = not wrapper and callable(getattr(of, "train", None)) and callable(getattr(of, "eval", None))
    if modes or "lookahead" in name.lower():
        raise UsageError(
            f"{name} keeps a copy of the weights in its state, which an outer step does not change: use an optimizer "
            "without one, such as torch.optim.AdamW"
        )


def refuse_schedulers(schedulers: Sequence[Any]) -> None:
    """Raise UsageError for schedulers that cannot be stepped after each step of an optimizer."""
    for of in schedulers:
        if type(of).__name__ in ("ReduceLROnPlateau", "GreedyLR"):
            raise UsageError(
                f"{type(of).__name__} depends on evaluations, which are not repeated after a restart; use a scheduler "
                "that depends only on steps"
            )
