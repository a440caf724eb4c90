"""Asynchronous training: servers apply each slot's gradient when it arrives, and no slot waits for another."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import nn

from .errors import UsageError
from .job import Job, Table
from .rules import Momentum, Nesterov, Rule, Set

_PAUSES = (0.01, 0.5)  # first and longest pause between two looks at the servers, in seconds


def is_async(job: Job) -> bool:
    """Reports whether the job's tables have a consistency model other than bsp."""
    return bool(job.spec["consistency"] != "bsp")


def refuse_async(job: Job, weighted: bool) -> None:
    """Raise UsageError if the job or the settings do not allow asynchronous training.

    Args:
        job: The job, under a model other than bsp.
        weighted: As in ``ServerOptimizer``.
    """
    model = job.spec["consistency"]
    if model.startswith("vap"):
        raise UsageError(
            f"ServerOptimizer does not train under {model}, which has no atomic clocks: choose essp:S with "
            "--atomic-clocks, which bounds the staleness, or bsp"
        )
    if not job.spec.get("atomic_clocks"):
        raise UsageError(
            f"ServerOptimizer under {model} needs atomic clocks: otherwise a process that replaces another may "
            "continue from a position in the data that does not fit its last update; add --atomic-clocks, or choose bsp"
        )
    if job.spec.get("suspend_ms"):
        raise UsageError(
            "a slot that is suspended because its process is missing would lose its position in the data: add "
            "--suspend-after 0s; under asp the other processes do not wait for it"
        )
    if weighted:
        raise UsageError(
            f"weighted=True does not work with consistency {model}, since no mean over the slots is computed: scale "
            "the loss instead, or choose bsp"
        )


def warn_momentum(job: Job, rules: Iterable[Rule]) -> None:
    """Warn if a rule has momentum, which adds up with the delay of gradients."""
    if any(isinstance(rule, (Momentum, Nesterov)) for rule in rules):
        job._warn(
            f"momentum under {job.spec['consistency']} adds up with the delay of gradients, so a rate that is right "
            "under bsp may diverge: prefer SGD without momentum or Adam, or lower the rate",
            stacklevel=3,
        )


def refuse_sync_batch_norm(model: nn.Module) -> None:
    """Raise UsageError for modules that need the other slots' statistics of the same step."""
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise UsageError(
                f"{name or 'the model'} is a SyncBatchNorm, which needs all slots' statistics of the same step; use "
                "BatchNorm, whose running statistics are averaged over the slots"
            )


def scaled(rule: Rule, factor: float) -> Rule:
    """Return the rule with its rate multiplied by factor."""
    if not 0 < factor < math.inf:
        raise UsageError(f"invalid rate_scale {factor}: choose a number above 0")
    return dataclasses.replace(rule, rate=rule.rate * factor)  # type: ignore[attr-defined,call-arg]


def averaged(buffers: Mapping[str, torch.Tensor], held: Sequence[torch.dtype]) -> dict[str, torch.Tensor]:
    """Return the buffers that are averaged over the slots: those of a type in held with finite values."""
    return {n: b for n, b in buffers.items() if b.dtype in held and bool(torch.isfinite(b).all())}


class Begun:
    """Tells every slot when all servers have the initial model, which slot 0 writes in its first clock.

    The table has one row on each shard. A shard that has this row has all that slot 0 wrote in that clock.
    """

    def __init__(self, job: Job) -> None:
        self._shards: int = job.spec["shards"]
        self._table = job.table("begun", self._shards, dim=1, rule=Set())

    def put(self) -> None:
        """Add the rows to the current clock's update."""
        self._table.inc_run(0, np.ones((self._shards, 1), np.float32))

    def wait(self, tables: Iterable[Table]) -> None:
        """Wait until all shards have their row, and drop rows of tables that were cached earlier."""
        pause, longest = _PAUSES
        while not self._table.get_run(0, self._shards).all():
            time.sleep(pause)
            pause = min(2 * pause, longest)
            self._table.forget()
        for table in tables:
            table.forget()
