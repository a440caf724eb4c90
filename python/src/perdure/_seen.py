"""Finds objects that a training program uses but does not pass to ServerOptimizer."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from .errors import UsageError
from .job import Job

_SCALER = (
    "ServerOptimizer does not work with a GradScaler: servers would apply the scaled gradients, and a step with an "
    "overflow could not be skipped; use bfloat16, which needs no scaler, or DataParallel or DiLoCo"
)


def refuse_misplaced(state: Sequence[Any], schedulers: Sequence[Any]) -> None:
    """Raise UsageError for objects in ``state`` that ServerOptimizer must step itself, or does not support."""
    for of in state:
        if isinstance(of, LRScheduler) and all(of is not known for known in schedulers):
            raise UsageError(
                f"state= contains a {type(of).__name__}, which the program steps after the step that saves it: list it "
                "in schedulers=, and let ServerOptimizer call its step"
            )
        if isinstance(of, torch.amp.GradScaler) and of.is_enabled():
            raise UsageError(_SCALER)


def look_around(job: Job, keeps_position: bool) -> None:
    """Look through all objects of this process, which takes some 50 ms, at the first step.

    Args:
        job: The job.
        keeps_position: Whether an object in ``state`` may save the position in the data. Otherwise a program that reads
            from a DataLoader is warned.

    Raises:
        UsageError: A GradScaler has scaled a loss.
    """
    scales, reads = _objects()
    if scales or (reads and not keeps_position):
        gc.collect()  # they may be remains of an earlier training
        scales, reads = _objects()
    if scales:
        raise UsageError(_SCALER)
    if reads and not keeps_position:
        job._warn(
            "the program reads from a DataLoader, but state= lists no loader: a replacement process would start its "
            "data from the beginning, and samples would count twice; use torchdata's StatefulDataLoader and list it "
            "in state=, or a Sampler",
            stacklevel=3,
        )


def _objects() -> tuple[bool, bool]:
    """Return whether a GradScaler that has scaled a loss exists, and whether an iterator of a DataLoader does."""
    scales = reads = False
    for of in gc.get_objects():
        kind = type(of)
        if issubclass(kind, torch.amp.GradScaler):
            scales = scales or (of.is_enabled() and of._scale is not None)
        reads = reads or kind.__name__.endswith("DataLoaderIter")
    return scales, reads
