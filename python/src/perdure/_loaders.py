"""Checks that the positions of torchdata's loaders can be saved, and counts their remaining batches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ._ending import Left
from ._prepared import base_of
from .errors import UsageError
from .job import Job
from .sampler import Loader, Sampler

_LOOKS = 3  # the number of first steps in which loaders are checked


class _Watched:
    """A loader, its name in ``state``, and the number of batches that it had yielded at the last check."""

    def __init__(self, loader: Any, name: str) -> None:
        self.loader, self.name = loader, name
        self.early = loader._iterator  # an iterator created before the slot's state was loaded
        self.given = 0 if self.early is None else self.early._num_yielded
        self.seen: Any = None  # the iterator at the last check
        self.drawn: list[int] = []  # batches read in each of the first steps
        self.trained: tuple[Any, int] = (None, 0)  # an iterator, and the number of its batches in finished steps

    def refuse_early(self) -> None:
        """Raise UsageError if the loop reads from an iterator older than the load, which did not move that iterator."""
        if self.early is not None and self.loader._iterator is self.early and self.early._num_yielded != self.given:
            raise UsageError(
                f"{self.name} is read through an iterator created before DataParallel, ServerOptimizer or DiLoCo, so a "
                "replacement process of this slot could not restore its position; call iter(loader) afterwards"
            )
        self.early = None

    def is_again(self) -> bool:
        """Reports whether a new pass has begun since the last step, after a pass with steps."""
        now, (known, trained) = self.loader._iterator, self.trained
        if now is None or known is None:
            return False
        return now is not known or now._num_yielded < trained  # persistent_workers reuses the iterator

    def is_ahead(self) -> bool:
        """Reports whether the first step read exactly one batch more than each of the next steps."""
        it = self.loader._iterator
        if it is None or (self.drawn and it is not self.seen):  # undecided: a new epoch began within these steps
            self.drawn = [0] * _LOOKS
            return False
        before = self.given if self.drawn else 0
        self.drawn.append(it._num_yielded - before)
        self.seen, self.given = it, it._num_yielded
        first, *others = self.drawn
        return len(self.drawn) == _LOOKS and all(first == of + 1 > 1 for of in others)


def _has_buffer(of: Any) -> bool:
    """Reports whether a Hugging Face iterable uses a shuffle buffer, which ``load_state_dict`` would empty."""
    if of is None:
        return False
    inside = [getattr(of, "ex_iterable", None), *getattr(of, "ex_iterables", ())]
    return type(of).__name__ == "BufferShuffledExamplesIterable" or any(map(_has_buffer, inside))


def is_of(job: Job, of: Any) -> bool:
    """Reports whether an object in ``state`` is the job's Sampler or its loader, which are always saved.

    Raises:
        UsageError: It is another job's Sampler, or a loader that does not use the job's Sampler.
    """
    sampler = of.sampler if isinstance(of, Loader) else of
    if isinstance(sampler, Sampler):
        if sampler is not job._sampler:
            raise UsageError("the Sampler in state= was created for another job; create one with this job")
        return True
    used = getattr(of, "batch_sampler", None)
    if isinstance(used, Sampler):
        raise UsageError(
            f"the {type(of).__name__} in state= uses a Sampler: loop over sampler.loader(loader), and omit it in state="
        )
    if job._sampler is not None and used is not None:
        raise UsageError(
            f"the {type(of).__name__} in state= does not use the job's Sampler, so it would not follow changes of the "
            "number of slots: create it with batch_sampler=sampler, or create no Sampler"
        )
    if base_of(of) is not of:
        raise UsageError(
            f"state= contains a {type(of).__name__} that accelerate has prepared, which reads a batch ahead and does "
            "not save its epoch: list a StatefulDataLoader that is not prepared, or use a Sampler, and loop over "
            "sampler.loader(accelerator.prepare(DataLoader(data, batch_sampler=sampler)))"
        )
    return False


class Loaders:
    """The loaders among the objects in ``state``."""

    def __init__(self, state: Sequence[Any], sampler: Sampler | None, job: Job) -> None:
        self._sampler, self._job = sampler, job
        self._epoch = job._epochs.epoch  # at the last finished step
        self._watched: list[_Watched] = []
        self._fresh = True  # whether the slot had no saved state, so that each loader is at its beginning
        self._steps = 0
        module = sys.modules.get("torchdata.stateful_dataloader")  # imported if any of its loaders exists
        for i, of in enumerate(state):
            if module is None or not isinstance(of, module.StatefulDataLoader):
                continue
            name = f"state[{i}], a {type(of).__name__},"
            if of.num_workers and not getattr(of, "in_order", True):
                raise UsageError(
                    f"{name} has in_order=False, so its state does not record which batches it has yielded; omit "
                    "in_order"
                )
            if _has_buffer(getattr(of.dataset, "_ex_iterable", None)):
                raise UsageError(
                    f"{name} reads a streaming dataset with a shuffle buffer, whose examples are not in its state: a "
                    "replacement process of this slot would lose them; omit shuffle, or load the dataset without "
                    "streaming=True"
                )
            self._watched.append(_Watched(of, name))

    def loaded(self) -> None:
        """Note that the loaders were restored to the positions of an earlier process of the slot."""
        self._fresh = False

    def stepped(self) -> None:
        """Record a finished step: all batches read so far are trained."""
        self._epoch = self._job._epochs.epoch
        if self._sampler is not None:
            self._sampler._stepped()
        for of in self._watched:
            it = of.loader._iterator
            of.trained = (it, 0 if it is None else it._num_yielded)

    def again(self) -> str | None:
        """Return the name of a loader that has begun another pass since the last step, or None."""
        if self._sampler is not None and self._sampler._is_again():
            return "the Sampler"
        return next((of.name for of in self._watched if of.is_again()), None)

    def check(self) -> None:
        """Check the loaders before a step is recorded. Raises UsageError for an iterator that is too old."""
        if self._steps >= _LOOKS:
            return
        self._steps += 1
        ahead = ["the Sampler"] if self._sampler is not None and self._sampler._is_ahead() else []
        for of in self._watched:
            of.refuse_early()
            if self._fresh and of.is_ahead():
                ahead.append(of.name)
        for name in ahead:
            self._job._warn(
                f"{name} is one batch ahead of the step: a replacement process of this slot would skip that "
                "batch, which no step has used yet; read each batch in the iteration that trains on it",
                stacklevel=2,
            )

    def left(self) -> Left | None:
        """Return how many batches of all epochs have not been trained, or None if no loader knows."""
        for of in self._watched:
            try:
                count = len(of.loader)
            except TypeError:  # the data have no length
                continue
            known, trained = of.trained
            epochs = self._job._epochs
            if of.loader._iterator is not known or self._epoch != epochs.epoch:
                trained = 0  # in this epoch
            left = (epochs.count - epochs.epoch) * count - trained
            return Left(max(0, left), epochs.count * count, "batches")
        return None
