"""What torchdata's loaders say of where they are: whether a position can be kept, and how much of it is left."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from ._ending import Left
from .errors import UsageError

_LOOKS = 3  # steps from which it is seen whether a loader is ahead


class _Watched:
    """A loader, its place in ``state``, and what it had given when it was last looked at."""

    def __init__(self, loader: Any, name: str) -> None:
        self.loader, self.name = loader, name
        self.early = loader._iterator  # made before the slot's state was loaded
        self.given = 0 if self.early is None else self.early._num_yielded
        self.seen: Any = None  # the iterator of the last look
        self.drawn: list[int] = []  # batches of each of the first steps
        self.trained: tuple[Any, int] = (None, 0)  # an iterator, and how many of its batches are in steps

    def refuse_early(self) -> None:
        """Refuse a loop that reads by an iterator from before the load: it stays where it was."""
        if self.early is not None and self.loader._iterator is self.early and self.early._num_yielded != self.given:
            raise UsageError(
                f"{self.name} is read by an iterator that is older than this DataParallel or DiLoCo, so a process that "
                "takes this slot over could not bring it to its place; call iter(loader) after both exist"
            )
        self.early = None

    def is_again(self) -> bool:
        """Whether a pass has begun since the last step, and was preceded by one that had steps."""
        now, (known, trained) = self.loader._iterator, self.trained
        if now is None or known is None:
            return False
        return now is not known or now._num_yielded < trained  # with persistent_workers it is the same one

    def is_ahead(self) -> bool:
        """Whether the first step was preceded by one batch more than each of the next ones."""
        it = self.loader._iterator
        if it is None or (self.drawn and it is not self.seen):  # a new epoch within these steps: no verdict
            self.drawn = [0] * _LOOKS
            return False
        before = self.given if self.drawn else 0
        self.drawn.append(it._num_yielded - before)
        self.seen, self.given = it, it._num_yielded
        first, *others = self.drawn
        return len(self.drawn) == _LOOKS and all(first == of + 1 > 1 for of in others)


def _has_buffer(of: Any) -> bool:
    """Whether Hugging Face's iterables shuffle by a buffer somewhere. Their ``load_state_dict`` begins an empty one."""
    if of is None:
        return False
    inside = [getattr(of, "ex_iterable", None), *getattr(of, "ex_iterables", ())]
    return type(of).__name__ == "BufferShuffledExamplesIterable" or any(map(_has_buffer, inside))


class Loaders:
    """The loaders among what ``state`` lists."""

    def __init__(self, state: Sequence[Any]) -> None:
        self._watched: list[_Watched] = []
        self._fresh = True  # the slot has no state yet: each loader is at its beginning
        self._steps = 0
        module = sys.modules.get("torchdata.stateful_dataloader")  # a loader of it has imported it
        for i, of in enumerate(state):
            if module is None or not isinstance(of, module.StatefulDataLoader):
                continue
            name = f"state[{i}], a {type(of).__name__},"
            if of.num_workers and not getattr(of, "in_order", True):
                raise UsageError(
                    f"{name} has in_order=False, with which its state does not say which batches it has given; leave "
                    "in_order out"
                )
            if _has_buffer(getattr(of.dataset, "_ex_iterable", None)):
                raise UsageError(
                    f"{name} reads a streaming dataset with a shuffle buffer, whose examples its state does not have: "
                    "a process that takes this slot over would lose them; leave shuffle out, or load the dataset "
                    "without streaming=True"
                )
            self._watched.append(_Watched(of, name))

    def loaded(self) -> None:
        """They were brought to where an earlier process of the slot was."""
        self._fresh = False

    def stepped(self) -> None:
        """A step was made: what was read so far is trained."""
        for of in self._watched:
            it = of.loader._iterator
            of.trained = (it, 0 if it is None else it._num_yielded)

    def again(self) -> str | None:
        """The name of a loader that has begun its data again since the last step; None: there is none."""
        return next((of.name for of in self._watched if of.is_again()), None)

    def check(self) -> None:
        """Look at them before a step is recorded. It raises UsageError for an iterator that is too old."""
        if self._steps >= _LOOKS:
            return
        self._steps += 1
        for of in self._watched:
            of.refuse_early()
            if self._fresh and of.is_ahead():
                warnings.warn(
                    f"{of.name} is one batch ahead of the step: that batch is in no step yet, and a process that takes "
                    "this slot over skips it; read a batch in the iteration that trains on it",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def left(self) -> Left | None:
        """How many batches of the present epoch are in no step, and of how many; None: no loader knows."""
        for of in self._watched:
            try:
                count = len(of.loader)
            except TypeError:  # of data without a length
                continue
            it, (known, trained) = of.loader._iterator, of.trained
            if it is not None and not it._finished:
                return Left(max(0, count - (trained if it is known else 0)), count, "batches")
        return None
