"""The common part of the callbacks for other libraries' trainers: the outer step of DiLoCo."""

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
    """The trainer's position: its own state, and the random number state at the start of its epoch."""

    begins_later = True  # the state includes a loader's, which must not start early

    def __init__(self) -> None:
        self.begun: dict[str, Any] = {}  # random state at the start of the epoch; samplers may draw the order from it
        self.trainer: Callable[[], dict[str, Any]] = dict
        self.loaded: dict[str, Any] | None = None  # the trainer's state saved by an earlier process of the slot

    def state_dict(self) -> dict[str, Any]:
        return {"trainer": self.trainer(), "begun": self.begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded, self.begun = state["trainer"], state["begun"]


class Outer:
    """DiLoCo with steps counted by a trainer. The trainer reports each step after its schedulers, before evaluations.

    After an outer step, random numbers continue from the state that it saved, whatever an evaluation has drawn since.
    So a replacement process, which does not repeat the evaluation, draws the same numbers. Between outer steps they are
    left unchanged. A draft has the objects' states from directly after a step. Its random number state is taken when
    the model runs next, after the batch was read. So drafts do not change the steps, and a process that continues from
    a draft has the state with which the next step would have started.
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
            raise UsageError(f"invalid sync_every {sync_every}: choose 1 or more steps")
        self.job, self.sync_every, self.place = job, sync_every, _Place()
        self.diloco: DiLoCo | None = None
        self.over = False  # whether the job's work has ended before the trainer's
        self._outer, self._weights, self._state, self._end = outer, weights, list(state), end
        self._random: dict[str, Any] | None = None  # random state to restore before the next step
        self._drafted: list[dict[str, Any]] | None = None  # states after the last step, copied for a draft
        self._spent = 0.0  # seconds that the copies took
        self._due = False  # whether to write a draft before the next step, and not only on SIGTERM

    def saved(self, model: nn.Module) -> dict[str, Any] | None:
        """Return the trainer's state saved by an earlier process of the slot, or None."""
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
        """Load the weights and the saved states.

        Args:
            model: The model.
            inner: The trainer's optimizer.
            state: Further objects of the trainer to save.
            trainer: Returns the state that the trainer needs to continue.
            left: Returns how many steps the trainer has left.
            closures: Whether the trainer runs the model within the optimizer's step, and calls step_begins after that.
        """
        if self.diloco is not None:
            raise UsageError("this callback has been used already; create a new one for each training")
        if self.job._sampler is not None:
            raise UsageError(
                "a Sampler does not work with a trainer, which reads batches ahead; give the trainer this slot's part "
                "of the data, as job.share says"
            )
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
        self.diloco._counts = False  # a trainer counts and steps its schedulers after the optimizer's step
        self.over = self.job.ended or self.diloco._over
        if self.place.loaded is not None:
            self._random = _random()

    def begin_epoch(self, amid: bool = False) -> None:
        """Prepare the random numbers before the loader starts. amid: another process of the slot started the epoch."""
        self.no_draft()  # a process that continued from one would start the loader with other random numbers
        if amid:
            _set_random(self.place.begun)
            return
        if self._random is not None:
            _set_random(self._random)
        self.place.begun = _random()

    def begin_step(self) -> None:
        """Restore random numbers, or write a draft that is due, after a batch was read and before the model runs."""
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
        """Note that the optimizer is about to change the weights."""
        if self.diloco is not None:
            self.diloco._step_begins()

    def no_draft(self) -> None:
        """Write no draft of the last step: a process that continued from it would miss later changes to the state."""
        self._drafted = None
        if self.diloco is not None and self.diloco._notice is not None:
            self.diloco._notice.drop()

    def stepped(self, before: int, now: int, last: bool) -> None:
        """Record the optimizer's step, and make an outer step if it is due.

        Args:
            before: The total number of steps before this one.
            now: The total number of steps now.
            last: Whether this is the last step.
        """
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
            # Reading the next batch changes some of these states, but not the optimizers', which are large.
            begun = time.monotonic()
            self._drafted = self.diloco._small_states()
            self._spent = time.monotonic() - begun
        elif notice is not None:
            notice.drop()

    def finish(self) -> None:
        """End the slot's work, and load the final model."""
        if self.diloco is not None and not self.job._finished:
            self.no_draft()
            self.diloco.finish()
