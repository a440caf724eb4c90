"""Refuses programs whose counters of epochs or steps would restart at 0 in a replacement process."""

from __future__ import annotations

import warnings
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

_CURE = "write for epoch in epochs, with epochs = perdure.Epochs(3) in state=, or go by job.now"


class Counted:
    """Checks that a replacement process continues the program's counters of epochs and steps.

    A counter in a Python variable dies with its process. An object in ``state=`` must keep it, or the program must use
    the job's clock.

    Args:
        job: The job that the program trains in.
        state: The objects whose state each update saves.
        schedulers: The schedulers among them that DiLoCo steps.
        epochs: The type that counts epochs. It is iterable, like a loader.
        others: Types that count neither epochs nor steps.
    """

    def __init__(
        self, job: Job, state: Sequence[Any], schedulers: Sequence[Any], epochs: type, others: tuple[type, ...] = ()
    ) -> None:
        self._job = job
        others += (Optimizer, LRScheduler, nn.Module, torch.amp.GradScaler)
        loaders = [of for of in state if is_loader(of) and not isinstance(of, epochs)]
        self._loaders = bool(loaders)
        #: whether something may keep a counter
        self._kept = any(not isinstance(of, others) and all(of is not loader for loader in loaders) for of in state)
        late = (of for of in state if isinstance(of, LRScheduler) and all(of is not s for s in schedulers))
        self._scheduler = next(late, None)
        self._rates: list[float] | None = None  # after the last complete step; None: not known

    def refuse_second_pass(self, loader: str | None) -> None:
        """Refuse a second pass over the data that nothing counts. loader: its name; None: there is none.

        A job with a planned last clock ends there, whatever the loop counts.
        """
        if loader is None or self._kept or self._job._asked or self._job.spec["clocks"] < NO_END:
            return
        raise UsageError(
            f"{loader} begins a second pass over its data, and nothing in state= counts passes: a process that takes "
            f"this slot over would count them from 0, as for epoch in range(3) does; {_CURE}"
        )

    def warn_taken_over(self) -> None:
        """Warn in a process that has taken the slot over, where nothing that is kept can count epochs."""
        if self._loaders and not self._kept and not self._job._asked:
            warnings.warn(
                "this process continues in the midst of the data, and nothing in state= counts epochs: a loop over "
                f"several epochs, such as for epoch in range(3), starts from 0 again and trains too much; {_CURE}",
                RuntimeWarning,
                stacklevel=2,
            )

    def stepped(self, optimizers: Sequence[Optimizer]) -> None:
        """Note the learning rates after a complete step, and after its schedulers."""
        self._rates = _rates_of(optimizers)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def refuse_rates(self, optimizers: Sequence[Optimizer], synced: bool, begins: bool) -> None:
        """Refuse learning rates that the program has set since the last step without a counter that is kept.

        synced: that step was an outer one, so the job's clock may be the counter. begins: the next step begins;
        otherwise its backward pass has, and a scheduler that has changed the rate by now was stepped after the save.
        """
        now = _rates_of(optimizers)
        if self._rates is None or self._rates == now or len(self._rates) != len(now):  # a group was added
            return
        if self._scheduler is not None and not begins:
            raise UsageError(
                f"{type(self._scheduler).__name__} in state= is stepped after the optimizer's step, when it has been "
                "saved already, so a process that takes this slot over would be one step late: list it in schedulers=, "
                "and leave its step() to DiLoCo"
            )
        if self._scheduler is None and not self._kept and not (synced and self._job._asked):
            raise UsageError(
                "the learning rate has changed since the last step, and nothing in state= counts steps: a process that "
                "takes this slot over would start its schedule from 0; list a scheduler in schedulers=, or keep the "
                "program's counter in state=, in an object with state_dict and load_state_dict"
            )
        if begins:
            self._rates = None


def _rates_of(optimizers: Sequence[Optimizer]) -> list[float]:
    """The learning rates of all groups; those on a GPU would have the program wait for it, and are left out."""
    rates = (group.get("lr") for of in optimizers for group in of.param_groups)
    return [float(r) for r in rates if isinstance(r, (int, float)) or (isinstance(r, torch.Tensor) and r.is_cpu)]
