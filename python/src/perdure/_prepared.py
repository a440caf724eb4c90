"""Looks into the objects that accelerate's ``prepare`` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def unwrapped(of: Any) -> Any:
    """Return the optimizer or scheduler inside accelerate's wrapper, which has no hooks, or else the object itself."""
    while type(of).__module__.split(".")[0] == "accelerate":
        inside = getattr(of, "optimizer", None) or getattr(of, "scheduler", None)
        if inside is None:
            break
        of = inside
    return of


def accumulates(of: Any) -> bool:
    """Reports whether accelerate adds up gradients now: its optimizer makes no step after the next backward pass."""
    state = getattr(of, "gradient_state", None)
    return state is not None and not state.sync_gradients


def base_of(loader: Any) -> Any:
    """Return the loader inside one that accelerate has prepared, or else the loader itself."""
    return getattr(loader, "base_dataloader", loader)


def started(loader: Any, epoch: int, is_last: Callable[[], bool]) -> Iterator[Any]:
    """Start a loader. One that accelerate has prepared would itself start later, and read a batch ahead.

    Args:
        loader: The loader.
        epoch: The epoch, for a dataset with ``set_epoch``.
        is_last: Reports whether the next batch is the last one of the epoch, after which accelerate makes a step.
    """
    base = base_of(loader)
    if base is loader:
        return iter(loader)
    loader.set_epoch(epoch)
    return _moved(loader, iter(base), is_last)


def _moved(loader: Any, batches: Iterator[Any], is_last: Callable[[], bool]) -> Iterator[Any]:
    from accelerate.utils import send_to_device

    loader.begin()
    try:
        for batch in batches:
            loader.end_of_dataloader = is_last()
            yield send_to_device(batch, loader.device, non_blocking=loader._non_blocking)
    finally:
        loader.end()
