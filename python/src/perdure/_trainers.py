"""The common parts of the callbacks for other libraries' trainers: the outer steps of DiLoCo, and DataParallel."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from . import _state
from ._ending import Left
from ._inner import refuse_schedulers
from ._overlap import checked, compression
from ._parallel import DataParallel
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
        if "trainer" not in state:
            raise UsageError("the slot's saved state was written by another program; start a new job for this program")
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
        overlap: int,
        mix: float | None,
        compress: str | None,
        compress_weights: str | None,
        outer: Rule | None,
        weights: Callable[[], float] | None,
        state: Iterable[Stateful],
        end: str,
    ) -> None:
        if sync_every < 1:
            raise UsageError(f"invalid sync_every {sync_every}: choose 1 or more steps")
        self.job, self.sync_every, self.place = job, sync_every, _Place()
        self._overlap, self._mix = checked(sync_every, overlap, mix)
        self._compress, self._compress_weights = compression(compress, compress_weights)
        self.diloco: DiLoCo | None = None
        self.over = False  # whether the job's work has ended before the trainer's
        self._outer, self._weights, self._state, self._end = outer, weights, list(state), end
        self._random: dict[str, Any] | None = None  # random state to restore before the next step
        self._drafted: list[dict[str, Any]] | None = None  # states after the last step, copied for a draft
        self._spent = 0.0  # seconds that the copies took
        self._due = False  # whether to write a draft before the next step, and not only on SIGTERM

    def saved(self, model: nn.Module) -> dict[str, Any] | None:
        """Return the trainer's state saved by an earlier process of the slot, or None."""
        rounded = (self._compress, self._compress_weights)
        kept = DiLoCo._drafted(self.job, model, self.sync_every, self._outer, self._weights, self._end, *rounded)
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
        generators: Sequence[torch.Generator] = (),
        closures: bool = False,
    ) -> None:
        """Load the weights and the saved states.

        Args:
            model: The model.
            inner: The trainer's optimizer.
            state: Further objects of the trainer to save.
            trainer: Returns the state that the trainer needs to continue.
            left: Returns how many steps the trainer has left.
            generators: The generators from which the loader draws the order.
            closures: Whether the trainer runs the model within the optimizer's step, and calls step_begins after that.
        """
        _refuse_second(self.diloco, self.job)
        self._generators = generators
        self.place.trainer = lambda: trainer() | {"orders": _orders(generators)}
        kept = [self.place, *state, *self._state]
        refuse_schedulers(kept)
        self.diloco = DiLoCo(
            self.job,
            model,
            inner,
            sync_every=self.sync_every,
            overlap=self._overlap,
            mix=self._mix,
            compress=self._compress,
            compress_weights=self._compress_weights,
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
            _set_orders(generators, self.place.loaded["orders"])

    def begin_epoch(self, amid: bool = False) -> None:
        """Prepare the random numbers before the loader starts. amid: another process of the slot started the epoch."""
        self.no_draft()  # a process that continued from one would start the loader with other random numbers
        if amid:
            _set_random(self.place.begun)
            _set_orders(self._generators, self.place.begun["orders"])
            return
        if self._random is not None:
            _set_random(self._random)
        self.place.begun = _random() | {"orders": _orders(self._generators)}

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
        try:
            if (self.diloco.synced or self.diloco._steps >= self._overlap) and not self.diloco._merge():
                raise self.diloco._done()
            if self.diloco.synced:
                self.diloco._outer_step(overlaps=self._overlap > 0 and not last)
        except Done:
            self.over = True
        if self.diloco.synced:
            self._random = _random()
            return
        if self.over or self.diloco._in_window():
            self.no_draft()
            return
        notice, self._due = self.diloco._notice, self.diloco._drafts.due()
        if (self._due or (notice is not None and notice.affords())) and not self.job._inced:
            # Reading the next batch changes some of these states, but not the optimizers', which are large.
            begun = time.monotonic()
            self._drafted = self.diloco._small_states()
            self._spent = time.monotonic() - begun
        elif notice is not None:
            notice.drop()

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Set the model to the shared weights, if an outer step has just begun, for an evaluation or a checkpoint."""
        if self.diloco is None or not (self.diloco.synced and self.diloco._in_window()):
            yield
            return
        with self.diloco.shared_weights():
            yield

    def finish(self) -> None:
        """End the slot's work, and load the final model."""
        if self.diloco is not None and not self.job._finished:
            self.no_draft()
            self.diloco.finish()


class Steps:
    """DataParallel with steps made by a trainer, which reports where a step begins and which loss ends it.

    The saved state of a mark has the trainer's position and the random state at the start of its epoch, including the
    loader's own generators. A replacement process starts the epoch's batches with this random state, skips the finished
    ones, and continues with the random state of the mark. The generators are not set to the mark: a sampler may have
    drawn from them for a later batch.
    """

    def __init__(self, job: Job, shared: Iterable[Stateful], state: Iterable[Stateful]) -> None:
        self.job, self.place = job, _Place()
        self.training: DataParallel | None = None
        self.trained = 0  # batches of the epoch whose steps are complete
        self._shared, self._state = list(shared), list(state)
        self._start: Callable[[int], Iterator[Any]] | None = None
        self._generators: list[torch.Generator] = []
        self._batches: Iterator[Any] | None = None  # those of the epoch, once it has started

    def saved(self) -> dict[str, Any] | None:
        """Return the trainer's state saved by an earlier process of the slot, or None."""
        kept, place = DataParallel._saved(self.job), _Place()
        if kept is not None:
            place.load_state_dict(kept[0])
        return None if place.loaded is None else place.loaded["position"]

    def begin(
        self,
        model: nn.Module,
        optimizers: Optimizer | Sequence[Optimizer],
        shared: Iterable[Stateful],
        start: Callable[[int], Iterator[Any]],
        generators: list[torch.Generator],
        trainer: Callable[[], dict[str, Any]],
        left: Callable[[], Left | None],
    ) -> dict[str, Any] | None:
        """Load the weights and the saved states.

        Args:
            model: The model.
            optimizers: The trainer's optimizers.
            shared: Further objects of the trainer that are equal in all slots.
            start: Returns the batches of a new epoch without a number of first ones.
            generators: The generators from which it draws the order.
            trainer: Returns the state that the trainer needs to continue.
            left: Returns how many steps the trainer has left.

        Returns:
            The trainer's state that was loaded, or None.
        """
        _refuse_second(self.training, self.job)
        self.place.trainer = lambda: {"position": trainer(), "trained": self.trained, "orders": _orders(generators)}
        self._start, self._generators = start, generators
        # The trainer's log, evaluations and callbacks depend on the loss, so a repeated step needs its own weights.
        self.training = DataParallel(
            self.job, model, optimizers, shared=[*shared, *self._shared], state=[self.place, *self._state], copy=False
        )
        self.training._left = left
        self.training.require_backward_grad_sync = False
        if self.place.loaded is None:
            return None
        self.trained = self.place.loaded["trained"]
        position: dict[str, Any] = self.place.loaded["position"]
        return position

    def batches(self) -> Iterator[Any]:
        """Begin a step, unless one has begun, before its batches are drawn. Return the remaining ones of the epoch."""
        assert self.training is not None
        assert self._start is not None
        loaded, self.place.loaded = self.place.loaded, None
        if loaded is not None and self.trained:  # another process of the slot started the epoch
            _set_random(self.place.begun)
            _set_orders(self._generators, self.place.begun["orders"])  # the loader advances them to the mark, or beyond
            self._batches = self._start(self.trained)
        elif loaded is not None:
            _set_orders(self._generators, loaded["orders"])
        self.training._resume_random()  # before the mark, whose state has them
        self.training._mark()
        if self.training._over:
            raise self.training._done()
        if self._batches is None:
            self.place.begun = _random() | {"orders": _orders(self._generators)}
            self._batches = self._start(0)
        return self._batches

    def before_backward(self, loss: torch.Tensor, ends: bool) -> None:
        """Let the backward pass of a loss end with the exchange of gradients, if it ends the step."""
        if ends:
            assert self.training is not None
            self.training.require_backward_grad_sync = True
            self.training._forward(loss)
            self.training.require_backward_grad_sync = False

    def stepped(self, batches: int) -> None:
        """Record a complete step, which has trained a number of batches."""
        self.trained += batches

    def no_step(self) -> None:
        """Note that the epoch has ended where the next step would begin: the code after it belongs to no step."""
        assert self.training is not None
        self.training._unmark()

    def epoch_ended(self) -> None:
        """Start the batches again at the next step."""
        self.trained, self._batches = 0, None

    def finish(self) -> None:
        """End the slot's work, and wait for all slots."""
        if self.training is not None and not self.job._finished:
            self.training.finish()

    def let_go(self) -> None:
        """Remove the hooks, also after an error."""
        if self.training is not None:
            self.training._let_go()


def generators_of(loader: Any) -> list[torch.Generator]:
    """Return the generators from which a loader draws the order."""
    samplers = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    holders = [loader, *samplers, getattr(samplers[1], "sampler", None)]
    found = [of for holder in holders if isinstance(of := getattr(holder, "generator", None), torch.Generator)]
    return list({id(of): of for of in found}.values())


def _orders(generators: Sequence[torch.Generator]) -> list[torch.Tensor]:
    return [of.get_state() for of in generators]


def _set_orders(generators: Sequence[torch.Generator], states: Sequence[torch.Tensor]) -> None:
    for of, state in zip(generators, states, strict=True):
        of.set_state(state)


class Batches:
    """The batches of a loader, one epoch after another, each from a given batch on.

    Skipped batches are not read if the loader draws indices of a dataset. The seed of workers is drawn once for each
    start, even if they persist. So a process that starts with the same random numbers continues with the same ones.
    """

    def __init__(self, loader: Any) -> None:
        self._loader, self._order = loader, None
        self.generators = generators_of(loader)
        self._seeds = torch.Generator()
        if not _draws_indices(loader):
            return
        whole = loader.batch_sampler is not None
        self._order = _Order(loader.batch_sampler if whole else loader.sampler)
        given = {name: getattr(loader, name) for name in _SETTINGS if hasattr(loader, name)}
        how = {"batch_sampler": self._order} if whole else {"sampler": self._order, "batch_size": None}
        self._loader = DataLoader(loader.dataset, generator=self._seeds, **how, **given)

    def start(self, skip: int) -> Iterator[Any]:
        """Return the batches of a new epoch without the first ones."""
        self._seeds.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        if self._order is not None:
            self._order.start(skip)
            skip = 0
        batches: Iterator[Any] = iter(self._loader)
        for _ in range(skip):
            next(batches)
        return batches


#: Arguments of a loader's copy, except its dataset, order and generator.
_SETTINGS = (
    "collate_fn",
    "in_order",
    "multiprocessing_context",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
)


class _Order:
    """The indices that a loader draws in an epoch, from a given one on.

    A loader with workers asks for them twice when it starts, or once if the workers persist. But the sampler must draw
    its random numbers once.
    """

    def __init__(self, indices: Iterable[Any]) -> None:
        self._indices = indices
        self._now: Iterator[Any] = iter(())

    def start(self, skip: int) -> None:
        """Draw the order of an epoch. Samplers do so when they yield the first index."""
        indices = iter(self._indices)
        first = list(itertools.islice(indices, skip, skip + 1))
        self._now = itertools.chain(first, indices)

    def __iter__(self) -> Iterator[Any]:
        return self._now


def _draws_indices(loader: Any) -> bool:
    """Reports whether a loader reads samples by indices, and is of a type whose copy is equal."""
    known = type(loader) is DataLoader or type(loader).__module__.startswith("torchdata.stateful_dataloader")
    return known and not isinstance(loader.dataset, IterableDataset)


def _refuse_second(training: Any, job: Job) -> None:
    """Raise UsageError for a callback that was used already, and for jobs with a Sampler."""
    if training is not None:
        raise UsageError("this callback has been used already; create a new one for each training")
    if job._island is not None:
        raise UsageError(
            "the callbacks for trainers do not work in an island of several ranks; use DiLoCo in a loop of your own, "
            "or omit --nproc-per-learner and torchrun"
        )
    if job._sampler is not None:
        raise UsageError(
            "a Sampler does not work with a trainer, which reads batches ahead; give the trainer this slot's part "
            "of the data, as job.share says"
        )
