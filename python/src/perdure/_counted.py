"""Rejects programs whose counters of epochs or steps would restart at 0 in a replacement process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ._late import is_loader
from .errors import UsageError
from .job import Job
from .progress import NO_END

_CURE = "write for epoch in job.epochs(3), or use job.now to decide when to stop"


class Counted:
    """Checks that a replacement process continues the program's counters of epochs and steps.

    A counter in a Python variable dies with its process. An object in ``state=`` must keep it, or the program must use
    the job's clock.

    Args:
        job: The job that the program trains in.
        state: The objects whose state each update saves.
        schedulers: The schedulers among them that DiLoCo steps.
        others: Types that count neither epochs nor steps.
    """

    def __init__(
        self, job: Job, state: Sequence[Any], schedulers: Sequence[Any], others: tuple[type, ...] = ()
    ) -> None:
        self._job = job
        others += (Optimizer, LRScheduler, nn.Module, torch.amp.GradScaler)
        loaders = [of for of in state if is_loader(of)]
        self._loaders = bool(loaders)
        #: whether an object in state may keep a counter
        self._kept = any(not isinstance(of, others) and all(of is not loader for loader in loaders) for of in state)
        late = (of for of in state if isinstance(of, LRScheduler) and all(of is not s for s in schedulers))
        self._scheduler = next(late, None)
        self._schedulers: Sequence[Any] = schedulers
        self._made: list[Any] = [None for _ in schedulers]  # their steps so far
        self._rates: list[float] | None = None  # after the last complete step; None: unknown

    def _keeps(self) -> bool:
        return self._kept or self._job._epochs.used

    def refuse_second_pass(self, loader: str | None) -> None:
        """Raise UsageError for a second pass over the data that no saved object counts.

        A job with a planned last clock is exempt: it ends there, whatever the loop counts.

        Args:
            loader: The name of the loader that has started a second pass, or None.
        """
        if loader is None or self._keeps() or self._job._asked or self._job.spec["clocks"] < NO_END:
            return
        raise UsageError(
            f"{loader} starts a second pass over its data, but no object in state= counts passes: a replacement "
            f"process of this slot would count them from 0, as for epoch in range(3) does; {_CURE}"
        )

    def keeps_position(self) -> bool:
        """Reports whether the program may continue in its data: by an object in ``state``, or by the job's clock."""
        return self._loaders or self._kept or self._job._asked > 0

    def warn_taken_over(self) -> None:
        """Warn in a replacement process if no saved object can keep the position in the data, or count epochs."""
        if not self.keeps_position():
            self._job._warn(
                "this process replaces another one, but state= lists no loader: unless the program draws its samples "
                "at random, it starts its data from the beginning, and samples count twice",
                stacklevel=4,
            )
        if self._loaders and not self._keeps() and not self._job._asked:
            self._job._warn(
                "this process continues in the middle of the data, but no object in state= counts epochs: a loop over "
                f"several epochs, such as for epoch in range(3), starts from 0 again and trains for "
                f"too many epochs; {_CURE}",
                stacklevel=2,
            )

    def refuse_set_rates(self, optimizers: Sequence[Optimizer], counts: bool) -> None:
        """Raise UsageError if the program has set learning rates since the last step by a counter that is not saved.

        Args:
            optimizers: The optimizers.
            counts: Whether the job counts the program's steps.
        """
        before, self._rates = self._rates, _rates_of(optimizers)
        if before in (None, self._rates) or counts or self._scheduler is not None or self._keeps() or self._job._asked:
            return
        raise UsageError(
            "the learning rate has changed since the last step, but no object in shared= or state= counts steps: a "
            "replacement process of this slot would start its schedule from 0; list a scheduler in shared=, or loop "
            "over steps"
        )

    def stepped(self, optimizers: Sequence[Optimizer]) -> None:
        """Record the learning rates after a complete step and its schedulers."""
        self._rates = _rates_of(optimizers)
        self._made = [getattr(of, "last_epoch", None) for of in self._schedulers]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def refuse_rates(self, optimizers: Sequence[Optimizer], synced: bool, begins: bool) -> None:
        """Raise UsageError if the program has set learning rates since the last step and saves no counter.

        Args:
            optimizers: The inner optimizers.
            synced: Whether an outer step followed the last step. Then the job's clock may be the counter.
            begins: Whether the next step begins. Otherwise its backward pass has just begun, and a scheduler that has
                changed the rate by then was stepped after the save.
        """
        for of, made in zip(self._schedulers, self._made, strict=True):
            if made not in (None, of.last_epoch):
                raise UsageError(
                    f"{type(of).__name__} in schedulers= was stepped by the program as well: omit its step(), which "
                    "DiLoCo calls"
                )
        now = _rates_of(optimizers)
        if self._rates is None or self._rates == now or len(self._rates) != len(now):  # a group was added
            return
        if self._scheduler is not None and not begins:
            raise UsageError(
                f"{type(self._scheduler).__name__} in state= is stepped after the optimizer's step, which has saved it "
                "already, so a replacement process of this slot would be one step late: list it in schedulers=, and "
                "let DiLoCo call its step()"
            )
        if self._scheduler is None and not self._keeps() and not (synced and self._job._asked):
            raise UsageError(
                "the learning rate has changed since the last step, but no object in state= counts steps: a "
                "replacement process of this slot would start its schedule from 0; list a scheduler in schedulers=, or "
                "keep the program's counter in state=, in an object with state_dict and load_state_dict"
            )
        if begins:
            self._rates = None


def _rates_of(optimizers: Sequence[Optimizer]) -> list[float]:
    """Return the learning rates of all groups. Rates on a GPU are omitted, since reading them would block."""
    rates = (group.get("lr") for of in optimizers for group in of.param_groups)
    return [float(r) for r in rates if isinstance(r, (int, float)) or (isinstance(r, torch.Tensor) and r.is_cpu)]
