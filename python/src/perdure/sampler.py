"""A sampler that trains each sample of an epoch exactly once, whatever processes die and however many slots there are.

The samples of a clock follow from the seed, the epoch, the position in the epoch and the slots that participate in the
clock. So all slots know them without communication. The slot with rank 0 writes the position into a table with each
update. A process that replaces another one, or joins as a new slot, reads it there.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._prepared import base_of, started
from .errors import PerdureError, RolledBack, UsageError
from .rules import Set

if TYPE_CHECKING:
    from .job import Job, Saved, Share

_DIM = 11  # values per row of the table
_SETTINGS, _POSITION = 0, 1  # rows of the table
_MAX_LENGTH = 1 << 48
_LOOKS = 3  # the number of first steps whose batches are counted
_END = object()


class _Place(NamedTuple):
    epoch: int
    position: int  # samples of the epoch that have been drawn, by all slots
    samples: int  # samples of the current clock that this slot has received


class _Draw(NamedTuple):
    total: int  # samples of all slots
    first: int  # where this slot's part starts in the epoch's order
    own: int  # samples of this slot


class Sampler:
    """Divides the samples of each clock among the slots that participate in it. Each counts once per epoch.

    Pass it as ``batch_sampler`` to a DataLoader and loop over ``loader(…)``. A program without PyTorch loops over the
    sampler itself, which yields lists of sample numbers. Create it before ``ServerOptimizer`` or ``DiLoCo``, which then
    save the position with each update.

    A replacement process continues at the position that the last update saved. ``perdure scale`` may change the number
    of slots at any time: from the clock of the change on, the rest of the epoch is divided among the new slots.

    Args:
        job: The job, with consistency ``bsp``. It can have one Sampler.
        length: The number of samples, such as ``len(data)``. It is the same in all processes.
        batch: The number of samples per slot and batch.
        shuffle: Whether each epoch has a random order of its own, which follows from ``seed`` and the epoch.
        seed: The seed of the order, at least 0 and below 2**64.
        drop_last: Whether to omit the last batches of an epoch if they are smaller than the others. By default the
            slots share the last samples as evenly as possible. A slot without samples skips the batch, or gets an empty
            list if the program loops over the sampler itself.
        global_batch: Whether ``batch`` is the number of samples for all slots together. Then a clock trains the same
            samples whatever the number of slots is.

    Raises:
        UsageError: A setting is invalid, or differs from that of the process that started the training.

    Example:
        >>> sampler = perdure.Sampler(job, len(data), batch=32)
        >>> loader = sampler.loader(DataLoader(data, batch_sampler=sampler, num_workers=2))
        >>> for epoch in job.epochs(3):
        ...     for x, y in loader:
        ...         train(x, y)
    """

    def __init__(
        self,
        job: Job,
        length: int,
        batch: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        global_batch: bool = False,
    ) -> None:
        if not 0 < length < _MAX_LENGTH:
            raise UsageError(f"invalid length {length}: a Sampler needs 1 sample or more")
        if batch < 1:
            raise UsageError(f"invalid batch {batch}: choose 1 or more samples")
        if not 0 <= seed < 1 << 64:
            raise UsageError(f"invalid seed {seed}: choose a number from 0 to 2**64 - 1")
        if job.spec["consistency"] != "bsp":
            raise UsageError(
                f"a Sampler does not work with consistency {job.spec['consistency']}, because only bsp has a clock at "
                "which all slots change the division of the data; choose bsp, or divide the data by job.share"
            )
        if job._island is not None and job._island.size > 1 and (not drop_last or global_batch):
            raise UsageError(
                f"a Sampler in an island of {job._island.size} ranks needs drop_last=True and no global_batch, because "
                "DDP and FSDP weigh all ranks of a batch equally"
            )
        if job._sampler is not None:
            raise UsageError(
                "this job already has a Sampler; use one for all training data, and a plain loader for evaluations"
            )
        if job._trained:
            raise UsageError(
                "create the Sampler before DataParallel, ServerOptimizer or DiLoCo, which save its position"
            )
        now = job._now()
        if global_batch and now.clock == 0 and batch < now.share.of:
            raise UsageError(
                f"batch {batch} with global_batch=True is smaller than the number of slots, {now.share.of}; choose a "
                "larger batch, or fewer slots"
            )
        self.length, self.batch = int(length), int(batch)
        self._job, self._shuffle, self._seed = job, bool(shuffle), int(seed)
        self._drop_last, self._global = bool(drop_last), bool(global_batch)
        self._table = job.table("sampler", dim=_DIM, rule=Set())
        self._written = np.zeros((2, _DIM), np.float32)  # what the current clock's update has of the table so far
        self._place = self._base = _Place(0, 0, 0)  # the base is the place after the last step
        # The epoch and position at the start of the clock; None: unknown.
        self._at_clock: tuple[int, int] | None = (0, 0) if now.clock == 0 else None
        self._share, self._generation = now.share, now.generation
        self._finished_in = now.generation  # the generation in which the last epoch ended, or the sampler was made
        self._stale = True  # whether the clock has changed since the last _refresh
        self._ended = False  # whether the slot's work has ended
        self._division = 0  # increases when batches drawn ahead become invalid
        self._pass = 0  # the number of the newest loop over the sampler
        self._starting = False  # whether a loader starts, which draws ahead
        self._ordered: tuple[int, Any] = (-1, None)  # an epoch, and its order
        self._received = 0  # batches since the last step
        self._drawn: list[int] = []  # batches received in each of the first steps
        self._last_epoch: int | None = None  # the epoch of this process's last step
        self._owner: Callable[[], Any] = lambda: None  # a weak reference to the DataParallel, ServerOptimizer or DiLoCo
        self._refresh()
        job._sampler = self

    @property
    def epoch(self) -> int:
        """The current epoch. The first one is 0."""
        return self._place.epoch

    def loader(self, loader: Any) -> Loader:
        """Return an iterable over a loader's batches that counts the batches that the loop has received.

        After a change of slots it discards batches that the loader's processes have read ahead for the old division,
        and reads the new ones.

        Args:
            loader: A DataLoader with ``batch_sampler=sampler``, or torchdata's StatefulDataLoader.

        Returns:
            The iterable. Each pass over it is the rest of the current epoch.

        Raises:
            UsageError: The loader does not use this sampler, or has fewer samples.
        """
        return Loader(self, loader)

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch with the current number of slots."""
        whole = self._whole(self._share)
        return max(1, self.length // whole) if self._drop_last else -(-self.length // whole)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the sample numbers of this slot's batches in the rest of the epoch.

        Without PyTorch's trainers a list may be empty: then the other slots have the last samples of the epoch.
        """
        if self._starting:
            return self._ahead(self._place.epoch, self._place.position, self._share)
        caller = sys._getframe(1).f_locals.get("self")
        if hasattr(caller, "_index_sampler") or hasattr(caller, "batch_sampler"):
            raise UsageError(
                f"a {type(caller).__name__} reads the Sampler, but only sampler.loader knows which batches the loop "
                "has received: loop over sampler.loader(loader)"
            )
        return self._batches(None)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a state."""
        return self._place._asdict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the position of a saved state."""
        self._move(_Place(**state))
        self._base = self._place

    # The order, and its division among slots

    def _order(self, epoch: int) -> Any:
        if self._ordered[0] != epoch:
            order: Any = range(self.length)
            if self._shuffle:
                # Raw values of a bit generator are the same in all versions of numpy; those of permutation may not be.
                keys = np.random.Philox(key=np.array([self._seed, epoch], np.uint64)).random_raw(self.length)
                order = np.argsort(keys, kind="stable")
            self._ordered = (epoch, order)
        return self._ordered[1]

    def _whole(self, share: Share) -> int:
        return self.batch if self._global else self.batch * share.of

    def _is_over(self, position: int, share: Share) -> bool:
        left = self.length - position
        return left == 0 or (self._drop_last and position > 0 and left < self._whole(share))

    def _draw(self, position: int, share: Share) -> _Draw:
        total = min(self._whole(share), self.length - position)
        each, more = divmod(total, share.of)
        first = position + share.rank * each + min(share.rank, more)
        return _Draw(total, first, each + (share.rank < more))

    def _numbers(self, epoch: int, draw: _Draw) -> list[int]:
        """Return this process's samples of a batch. The ranks of an island have equal parts of their slot's."""
        first, own = draw.first, draw.own
        if (island := self._job._island) is not None:
            if own % island.size:
                raise UsageError(
                    f"a batch of {own} samples cannot be divided equally among the {island.size} ranks of this island; "
                    "choose a batch that is a multiple of the ranks, and data of at least one batch per slot"
                )
            own //= island.size
            first += own * island.rank
        return np.asarray(self._order(epoch)[first : first + own]).tolist()  # type: ignore[no-any-return]

    def _ahead(self, epoch: int, position: int, share: Share) -> Iterator[list[int]]:
        """Yield the batches of the rest of the epoch, for a loader. Empty ones are omitted."""
        while not self._is_over(position, share):
            draw = self._draw(position, share)
            if draw.own:
                yield self._numbers(epoch, draw)
            position += draw.total

    # The loop

    def _batches(self, loader: Any) -> Iterator[Any]:
        """Yield the batches of the rest of the epoch, and count each one when the loop receives it."""
        self._refresh()
        self._unread()
        self._pass = number = self._pass + 1
        inner, division, epoch = None, -1, self._place.epoch
        while True:
            self._refresh()
            if number != self._pass:
                raise UsageError("another loop reads from this Sampler; finish one loop before the next one starts")
            if self._is_over(self._place.position, self._share):
                break
            if self._ended and self._owner() is None:
                return
            if self._ended and self._leaves():
                raise self._owner()._done()
            # In a job that another slot has ended, the loop receives a batch all the same: it may be about to leave.
            if not self._ended:
                self._refuse_unknown()
            if loader is not None and division != self._division:
                inner = None  # ends the processes of the previous one before others start
                inner, division = self._start(loader), self._division
            epoch, position, samples = self._place
            draw = self._draw(position, self._share)
            batch: Any = None
            if loader is None:
                batch = self._numbers(epoch, draw)
            elif draw.own and (batch := next(inner, _END)) is _END:  # type: ignore[arg-type]
                raise PerdureError(f"the loader ended before sample {position} of {self.length}; this is a bug")
            self._place = _Place(epoch, position + draw.total, samples + draw.own)
            self._received += 1
            if not draw.own and (loader is not None or self._owner() is not None):
                self._skip()
            else:
                yield batch
        if inner is not None:
            next(inner, None)  # the loader ends its pass
        # A rollback may have returned the position to the end of an earlier epoch.
        self._move(_Place(self._place.epoch + 1, 0, self._place.samples))
        self._base = self._place

    def _unread(self) -> None:
        """Return to the last step. Batches since then were received by a loop that was left before its step."""
        if self._place != self._base:
            self._move(self._base)
            self._received = 0

    def _start(self, loader: Any) -> Iterator[Any]:
        self._starting = True
        try:
            return started(loader, self._place.epoch, self._is_last)
        finally:
            self._starting = False

    def _is_last(self) -> bool:
        """Reports whether the next batch is the last one of the epoch."""
        position = self._place.position
        return self._is_over(position + self._draw(position, self._share).total, self._share)

    def _skip(self) -> None:
        """End the step of a batch in which this slot has no samples."""
        owner = self._owner()
        if owner is None:
            raise UsageError(
                "the last batch of the epoch has no sample for this slot: loop over the sampler itself, which then "
                "yields an empty list, or choose drop_last=True"
            )
        if self._received > 1:
            raise UsageError(
                "the last batch of the epoch has no sample for this slot, and its loop has received other batches "
                "since the last step: gradients that add up over several batches need drop_last=True"
            )
        owner._step_without_samples()

    def _move(self, to: _Place) -> None:
        if to[:2] != self._place[:2]:
            self._division += 1
        self._place = to

    def _finish_epoch(self, epoch: int) -> bool:
        """Start the next epoch unless it has started. Reports whether the loop over epochs may continue.

        After a rollback the loop may have finished an earlier epoch, and not the one that it began.
        """
        self._refresh()
        rolled_back, self._finished_in = self._generation != self._finished_in, self._generation
        if self._place.epoch == epoch and not rolled_back:
            self._unread()
            self._move(_Place(epoch + 1, 0, self._place.samples))
            self._base = self._place
        return not self._ended or self._owner() is not None  # a trainer raises Done at the next batch or step

    # Steps, as ServerOptimizer and DiLoCo report them

    def _stepped(self) -> None:
        """Record a finished step: all batches received so far are trained."""
        self._base, self._last_epoch = self._place, self._place.epoch
        self._received = 0

    def _is_again(self) -> bool:
        """Reports whether a new epoch has begun since this process's last step."""
        return self._last_epoch not in (None, self._place.epoch)

    def _is_ahead(self) -> bool:
        """Reports whether the first step received exactly one batch more than each of the next steps."""
        if len(self._drawn) == _LOOKS:
            return False
        self._drawn.append(self._received)
        first, *others = self._drawn
        return len(self._drawn) == _LOOKS and all(first == of + 1 > 1 for of in others)

    def _is_former(self, state: dict[str, Any], saved: Saved) -> bool:
        """Reports whether a saved state is from before the slot left the job: it is old, and others have moved on."""
        self._refresh()
        old = saved.older == 0 and saved.clock + 1 < self._job._now().clock
        return old and self._at_clock not in (None, (state["epoch"], state["position"]))

    def _resume(self, loaded: bool) -> None:
        """Continue at the start of the clock. The table overrides a state of the slot, if one was loaded."""
        self._refresh()
        if self._at_clock is None and loaded:
            self._at_clock = self._place[:2]
        if self._at_clock is None:
            return
        self._move(_Place(*self._at_clock, 0))
        self._base = self._place

    def _repeat(self, share: Share) -> None:
        """Continue at the loaded position, for a step that repeats the clock before the current one."""
        self._generation, self._share, self._ended = self._job._now().generation, share, False
        self._division += 1
        self._at_clock, self._stale = self._place[:2], False

    def _check_share(self, share: Share) -> None:
        if self._place.samples and share != self._share:
            raise PerdureError(f"batches were drawn for share {self._share}, but the clock has {share}; this is a bug")

    def _leaves(self) -> bool:
        """Reports whether the slot's work has ended because it leaves the job, and not because the job ends."""
        return self._job._now().left

    def _enter_epoch(self) -> None:
        """Start the next epoch if the clock starts at the end of one. The loop over epochs then skips the old one."""
        self._refresh()
        if self._is_over(self._place.position, self._share):
            self._move(_Place(self._place.epoch + 1, 0, 0))
            self._base = self._place

    # The clock

    def _before_clock(self) -> None:
        """Add the position to this slot's update, if its rank is 0."""
        try:
            now = self._job._now()
            if now.generation != self._generation:
                self._written = np.zeros((2, _DIM), np.float32)
                self._stale = True
            self._refresh()
            if not now.ended and now.share.rank == 0:
                self._write(now.clock)
        except RolledBack:  # the end of the clock returns the clock to continue with
            self._stale = True

    def _write(self, clock: int) -> None:
        self._refuse_unknown()
        rows = np.zeros((2, _DIM), np.float32)
        if clock == 0:
            rows[_SETTINGS] = self._settings()
        rows[_POSITION] = [*_pieces(self._place.epoch, 2), *_pieces(self._place.position, 3), 1, *([0] * (_DIM - 6))]
        inced = self._job._inced
        # Deltas of a clock add up, so a clock that is ended again after an error sends only the difference.
        first = _SETTINGS if clock == 0 else _POSITION
        self._table.inc(np.arange(first, 2), (rows - self._written)[first:])
        self._job._inced = inced
        self._written = rows

    def _after_clock(self, advanced: bool) -> None:
        """Note that the clock has ended."""
        self._written = np.zeros((2, _DIM), np.float32)
        self._at_clock = self._place[:2]
        self._place = self._base = self._place._replace(samples=0)
        self._received, self._stale = 0, True
        if advanced:
            with contextlib.suppress(RolledBack):  # the next read raises it
                self._table.prefetch([_SETTINGS, _POSITION])

    def _enter_window(self) -> None:
        """Continue before the clock has ended. Its division of the data stays valid until ``_leave_window``."""
        self._after_clock(advanced=False)
        self._stale = False

    def _rewind(self) -> None:
        """Return to the start of the clock, which ends without this slot's work."""
        if self._at_clock is not None:
            self._move(_Place(*self._at_clock, 0))
            self._base = self._place

    def _leave_window(self) -> None:
        """Compare the position at the end of the clock, which has ended now, with that of the slot with rank 0."""
        self._stale = True
        self._refresh()

    def _refresh(self) -> None:
        """Read the share and the position of the clock, if it is a new one, and compare the position.

        Raises:
            UsageError: The settings or the position differ from those of the slot with rank 0.
        """
        if not self._stale:
            return
        now = self._job._now()
        self._ended = now.ended
        if now.ended:
            self._stale = False
            return
        if now.generation != self._generation:
            self._generation, self._at_clock = now.generation, None
        if now.clock == 0 and self._at_clock is None:  # the job was rolled back to its start
            self._at_clock = (0, 0)
            self._move(_Place(0, 0, 0))
            self._base = self._place
        elif now.clock > 0:
            rows = self._table.get([_SETTINGS, _POSITION])
            self._compare_settings(rows[_SETTINGS])
            self._take(rows[_POSITION])
        if now.share != self._share:
            self._share = now.share
            self._division += 1
        self._stale = False

    def _take(self, row: Any) -> None:
        """Compare the position at the start of the clock with that of the slot with rank 0, or continue there."""
        there = (_joined(row[:2]), _joined(row[2:5])) if row[5] else None  # a row may be missing if servers lost it
        if self._at_clock is None:
            if there is not None:
                self._move(_Place(*there, 0))
                self._base, self._at_clock = self._place, there
        elif there is not None and there != self._at_clock:
            mine = "epoch {}, position {}".format(*self._at_clock)
            raise UsageError(
                f"slots have drawn different numbers of batches in a clock: this slot is at {mine}, and the slot with "
                "rank 0 at epoch {}, position {}; ".format(*there)
                + "all slots must draw as many batches per clock, and leave an epoch at the same step"
            )

    def _refuse_unknown(self) -> None:
        if self._at_clock is None:
            raise UsageError(
                "the position in the data is unknown: the training did not start with a Sampler, or a server's death "
                "has lost the position; start a new job with the exported model"
            )

    def _settings(self) -> list[float]:
        flags = self._shuffle | self._drop_last << 1 | self._global << 2
        return [*_pieces(self.length, 3), *_pieces(self.batch, 2), *_pieces(self._seed, 4), flags, 1]

    def _compare_settings(self, row: Any) -> None:
        if not row[-1]:
            return
        theirs = (
            _joined(row[:3]),
            _joined(row[3:5]),
            _joined(row[5:9]),
            *(bool(int(row[9]) >> i & 1) for i in (0, 1, 2)),
        )
        mine = (self.length, self.batch, self._seed, self._shuffle, self._drop_last, self._global)
        names = ("length", "batch", "seed", "shuffle", "drop_last", "global_batch")
        for name, here, there in zip(names, mine, theirs, strict=True):
            if here != there:
                raise UsageError(
                    f"the Sampler has {name} {here}, but {there} in the process that started the training; {name} must "
                    "be the same in all processes for the whole job"
                )


class Loader:
    """The batches of a loader, as ``Sampler.loader`` returns them. ``len`` is the number of batches of an epoch."""

    def __init__(self, sampler: Sampler, loader: Any) -> None:
        used = getattr(loader, "batch_sampler", None)
        if used is not sampler:
            raise UsageError(
                f"the batch_sampler of the {type(loader).__name__} is a {type(used).__name__}, and not this Sampler; "
                "create it with batch_sampler=sampler"
            )
        if loader.num_workers and not getattr(loader, "in_order", True):
            raise UsageError(
                "the loader has in_order=False, so the number of received batches does not say which ones they are; "
                "omit in_order"
            )
        size = len(loader.dataset) if hasattr(loader.dataset, "__len__") else sampler.length
        if size < sampler.length:
            raise UsageError(f"the loader's data have {size} samples, fewer than the Sampler's length {sampler.length}")
        if (base := base_of(loader)).generator is None:
            # Otherwise each start of the loader would draw a seed from the program's random numbers.
            import torch

            base.generator = torch.Generator().manual_seed(torch.initial_seed() + sampler._job._stream)
        self.sampler: Sampler = sampler
        self._loader = loader

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch with the current number of slots."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the rest of the epoch."""
        return self.sampler._batches(self._loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the sampler as a state."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the position of a saved state."""
        self.sampler.load_state_dict(state)


def _pieces(number: int, count: int) -> list[int]:
    """Return a number in pieces of 16 bits, which float32 represents exactly."""
    return [number >> 16 * i & 0xFFFF for i in range(count)]


def _joined(pieces: Any) -> int:
    return sum(int(of) << 16 * i for i, of in enumerate(pieces))
