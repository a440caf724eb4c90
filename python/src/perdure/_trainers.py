"""What the callbacks for trainers of other libraries have in common: the outer step of DiLoCo, which they call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from . import _state
from ._ending import Left
from ._inner import refuse_schedulers
from .errors import Done, UsageError
from .job import Job
from .rules import Rule
from .torch import DiLoCo, Stateful, _random, _set_random


class _Place:
    """Where the trainer is: what the trainer itself needs to go on, and the random numbers its epoch began with."""

    begins_later = True  # its state includes a loader's, which must not begin early

    def __init__(self) -> None:
        self.begun: dict[str, Any] = {}  # the epoch's: a sampler may draw the order of the data from them
        self.trainer: Callable[[], dict[str, Any]] = dict
        self.loaded: dict[str, Any] | None = None  # the trainer's part of what another process had saved

    def state_dict(self) -> dict[str, Any]:
        return {"trainer": self.trainer(), "begun": self.begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded, self.begun = state["trainer"], state["begun"]


class Outer:
    """DiLoCo whose steps a trainer counts. It is told of each: behind the schedulers' step, before an evaluation.

    Random numbers go on from what an outer step has saved, whatever an evaluation behind it has drawn: so who goes on
    there without the evaluation has the same ones. Between two outer steps they are left alone. A draft has what counts
    as it was behind a step, and random numbers as they are when the model is run again, behind the reading of a batch:
    so steps are the same whether there are drafts or not, and who goes on from one finds what the next step would have.
    """

    def __init__(
        self,
        job: Job,
        *,
        sync_every: int,
        outer: Rule | None,
        weights: Callable[[], float] | None,
        state: Iterable[Stateful],
        end: str,
    ) -> None:
        if sync_every < 1:
            raise UsageError(f"sync_every is {sync_every}; choose 1 or more steps")
        self.job, self.sync_every, self.place = job, sync_every, _Place()
        self.diloco: DiLoCo | None = None
        self.over = False  # the job's work has ended before the trainer's
        self._outer, self._weights, self._state, self._end = outer, weights, list(state), end
        self._random: dict[str, Any] | None = None  # with which the next step begins
        self._drafted: list[dict[str, Any]] | None = None  # states behind the last step, if a draft is to have them
        self._spent = 0.0  # seconds that these took
        self._due = False  # it is to be written before the next step, and not on SIGTERM only

    def saved(self, model: nn.Module) -> dict[str, Any] | None:
        """What the trainer needs to go on where an earlier process of the slot was; None: there was none."""
        kept = DiLoCo._drafted(self.job, model, self.sync_every, self._outer, self._weights, self._end)
        if kept is None:
            saved = self.job.load_state()
            kept = None if saved is None else _state.decode(saved)
        return None if kept is None else kept["state"][0]["trainer"]

    def begin(
        self,
        model: nn.Module,
        inner: Optimizer,
        state: Iterable[Stateful],
        trainer: Callable[[], dict[str, Any]],
        left: Callable[[], Left | None],
        *,
        closures: bool = False,
    ) -> None:
        """Take over the weights, and the states of what was saved. trainer: what the trainer needs to go on. left: how
        many steps it has not made. closures: it runs the model within the optimizer's step, and calls step_begins after
        that.
        """
        if self.diloco is not None:
            raise UsageError("a callback is for one training; make another one for the next")
        self.place.trainer = trainer
        kept = [self.place, *state, *self._state]
        refuse_schedulers(kept)
        self.diloco = DiLoCo(
            self.job,
            model,
            inner,
            sync_every=self.sync_every,
            outer=self._outer,
            weights=self._weights,
            state=kept,
            end=self._end,
        )
        self.diloco._left = left
        if closures:
            self.diloco._unhook_before()
        self.diloco._counts = False  # a trainer steps its schedulers, and counts, after the optimizer's step
        self.over = self.job.ended or self.diloco._over
        if self.place.loaded is not None:
            self._random = _random()

    def begin_epoch(self, amid: bool = False) -> None:
        """Before the loader begins. amid: the epoch had begun in another process, which ended amid it."""
        self.no_draft()  # who went on from it would have the loader begin with other random numbers
        if amid:
            _set_random(self.place.begun)
            return
        if self._random is not None:
            _set_random(self._random)
        self.place.begun = _random()

    def begin_step(self) -> None:
        """Before the model is run, behind the reading of a batch."""
        drafted, self._drafted = self._drafted, None
        if self._random is not None:
            _set_random(self._random)
            self._random = None
        elif drafted is not None and not self.job._inced:
            assert self.diloco is not None
            if self._due:
                now = zip(self.diloco._state, drafted, strict=True)
                self.diloco._draft([of.state_dict() if isinstance(of, Optimizer) else was for of, was in now])
            if self.diloco._notice is not None:
                self.diloco._notice.keep(lambda: {"state": drafted, "random": _random()}, self._spent)

    def step_begins(self) -> None:
        """Before the optimizer changes the weights."""
        if self.diloco is not None:
            self.diloco._step_begins()

    def no_draft(self) -> None:
        """Have no draft of the last step: what comes behind it changes what a process that goes on there would lack."""
        self._drafted = None
        if self.diloco is not None and self.diloco._notice is not None:
            self.diloco._notice.drop()

    def stepped(self, before: int, now: int, last: bool) -> None:
        """Behind the optimizer's step. before, now: how many there were and are, in all. last: no more will be."""
        assert self.diloco is not None
        if self.over:
            return
        self.diloco._steps += now - before
        self.diloco.synced = last or now // self.sync_every > before // self.sync_every
        if self.diloco.synced:
            try:
                self.diloco.sync()
            except Done:
                self.over = True
            self._random = _random()
            return
        notice, self._due = self.diloco._notice, self.diloco._drafts.due()
        if (self._due or (notice is not None and notice.affords())) and not self.job._inced:
            # Reading the next batch changes what some of them have; an optimizer's, which are large, it does not.
            begun = time.monotonic()
            self._drafted = self.diloco._small_states()
            self._spent = time.monotonic() - begun
        elif notice is not None:
            notice.drop()

    def finish(self) -> None:
        """End the slot's work, and take the model that all have."""
        if self.diloco is not None and not self.job._finished:
            self.no_draft()
            self.diloco.finish()
