"""The end of a job whose slots have unequal amounts of data: when the first slot is done, or when the last one is."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .errors import RolledBack, UsageError
from .job import Job
from .rules import Set

ENDS = ("first", "all")


class Left(NamedTuple):
    """The amount of a slot's data that was not trained."""

    left: int
    of: int
    unit: str  # "batches" of all epochs, or "steps" of a trainer


def check_end(end: str) -> None:
    """Raises UsageError unless end is one of ENDS."""
    if end not in ENDS:
        raise UsageError(f"invalid end {end!r}: choose 'first' or 'all'")


class Ending:
    """Decides when a training job ends. end is ``first`` or ``all``, as in ``ServerOptimizer``.

    With ``all``, a slot that is done sets its row of a table to 1, and ends clocks without work until all rows are 1.
    Under bsp all slots read the same rows in the same clock, so they end together. Under other models a slot that is
    done ends a clock now and then, so that slots that must wait for its clocks can continue.
    """

    def __init__(self, job: Job, end: str) -> None:
        self._job = job
        self._slots: int = job.spec["slots"]
        self._table = (
            job.table("done", max(self._slots, job.spec["shards"]), dim=1, rule=Set()) if end == "all" else None
        )
        self._pause = 0.0 if job.spec["consistency"] == "bsp" else 0.05  # seconds
        self.cut = False  # whether the job ended before this slot's loop
        self.unsent = 0  # inner steps of this slot that were never sent

    def done(self) -> bool:
        """Reports whether an earlier process finished this slot's work while other slots are not done."""
        return self._table is not None and bool(self._table.get([self._job.slot])[0, 0])

    def await_others(self, between: Callable[[], None]) -> None:
        """With ``all``, end clocks without work until every slot is done. between is called before each ends."""
        if self._table is None:
            return
        begun = now = self._job._now()
        while not now.ended and not self._table.get_run(0, self._slots).all():
            self._table.inc([self._job.slot], np.ones((1, 1), np.float32))
            between()
            self._job.clock()
            if self._pause:
                time.sleep(self._pause)
                self._table.forget()
            now = self._job._now()
            if now.generation != begun.generation:
                raise RolledBack(
                    "the job was rolled back while this slot waited for the others; start this program again"
                )

    def say(self, left: Left | None) -> None:
        """Report the data that this slot had not trained when the job ended. left: the amount; None if unknown."""
        end = self._job.end
        loop = self.cut and (left is None or left.left > 0)
        if end >= self._job.spec["clocks"] or not (loop or self.unsent):  # the planned end, or nothing is left
            return
        what, said = [], {"unsent": self.unsent}
        if loop and left is not None:
            said |= left._asdict()
            what.append(f"{left.left} of {left.of} {left.unit} were not trained")
        elif loop:
            what.append("its loop had not ended")
        if self.unsent:
            what.append(f"{self.unsent} steps since its last outer step do not count")
        self._job._report(untrained=said)
        why = "with end='all' each slot trains all of its data"
        if self._table is not None:
            why = "a program has ended the job"
        warnings.warn(
            f"slot {self._job.slot}: the job ended at clock {end}, before this slot was done: {' and '.join(what)}; "
            f"{why}",
            RuntimeWarning,
            stacklevel=2,
        )
        self.cut, self.unsent = False, 0
