"""Data parallelism in which the program keeps its own optimizer.

The servers sum the gradients of a clock in a transient table and hold nothing else of the model. All learners start
with the same state and take the same steps with the same mean gradients, so each has the whole of it. In the clocks
that a checkpoint ends, each learner saves its state, as it was at the *mark*: the point of the loop at which a step
begins. If a learner dies, its replacement gets the own state of the last mark, repeats the step that began there,
with the means that the servers have kept of it, and sends nothing in this step. It copies the shared state of a living
learner. If none has it, all roll back to the newest checkpoint, and each repeats the step that this one ended.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from . import _agent, _state
from ._counted import Counted
from ._ending import Ending, Left
from ._epochs import Epochs
from ._flags import HEAD, LEAVING, Flags
from ._frozen import Frozen, plain_name, refuse_group, refuse_without_values
from ._inner import load
from ._island import refuse_other_ranks
from ._late import is_loader
from ._loaders import Loaders, is_of
from ._local import local
from ._mirror import PARTS, bits_of, divide
from ._misuse import refuse_empty_batches, refuse_misplaced, refuse_other_number, refuse_recovery, trained_of
from ._names import Description, Place
from ._pieces import Pieces, placed
from ._prepared import accumulates, unwrapped
from ._shared import Lot
from ._small import copied, merged, rates_of, small_of
from .errors import Done, NonFinite, PerdureError, Refused, RolledBack, UsageError, _CopyWanted, _Left
from .job import Job, Share, Table, _Now
from .rules import Set
from .sampler import Loader
from .torch import (
    _DIM,
    Stateful,
    _buffers_of,
    _Bytes,
    _frozen_places,
    _random,
    _refuse_unkept,
    _Rows,
    _separate_generators,
    _set_random,
    _Training,
)

_BUCKET = 25 << 20  # bytes of gradients that are sent together while the backward pass continues
_FRAMES = 12  # max calls between GradScaler.step and a hook of the optimizer's step
_LOADERS = (torch.utils.data.DataLoader, torch.utils.data.Sampler)
_CHECKED = 2  # steps of a process in which changes of the shared state are looked for, besides those that save it


class DataParallel(_Training):
    """Trains like DistributedDataParallel: at the end of ``backward`` each gradient is the mean over all slots.

    The loop is the program's own: clipping, any optimizers of torch.optim, schedules, mixed precision, accumulation.
    A replacement process needs everything that changes with the steps, so list it: objects that all slots have in
    common in ``shared``, and those of one slot in ``state``. The model, the optimizers, and random numbers are always
    saved.

    ``batches`` yields the batches of a loader, and marks where a step begins. Programs that draw batches themselves
    loop over ``steps``. A step has one synchronised backward pass of the model's output. ``no_sync`` makes the others.

    If a process of a slot dies, its replacement copies the shared state of a living process (see ``copy``). If there is
    none, all roll back to the newest checkpoint: the other programs get RolledBack and are started again. The death of
    a server costs no step under ``resend:C`` and ``chain:N,checkpoint:C``. The final model is identical to the last
    bit, if all machines compute the same bits.

    Args:
        job: The job, with consistency ``bsp`` and recovery ``resend:C``, ``checkpoint:C`` or ``chain:N,checkpoint:C``.
        model: The model. All slots must use the same one. Call it itself, not its methods.
        optimizer: The optimizer of all trained parameters, or a list of them.
        shared: Objects that are equal in all slots, such as schedulers, a GradScaler, averages of the weights. Change
            them only between ``backward`` and the end of the step's code.
        state: Objects of this slot, such as a StatefulDataLoader. A Sampler's loader need not be listed.
        copy: Whether a replacement copies the shared state of a living process, so that no step is redone. It repeats
            its predecessor's last step, to restore the own state, with the weights of the next step. So an average of
            losses in ``state`` would differ. None: if ``state`` contains only loaders. False: all roll back.

    Raises:
        UsageError: The model, an optimizer or an object is not supported; the message says what to change.

    Example:
        >>> with perdure.DataParallel(job, model, optimizer, shared=[scheduler], state=[loader]) as training:
        ...     for x, y in training.batches(loader):
        ...         loss(model(x), y).backward()
        ...         torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        ...         optimizer.step()
        ...         scheduler.step()
        ...         optimizer.zero_grad()
    """

    def __new__(cls, job: Job, *args: Any, **kwargs: Any) -> DataParallel:
        if cls is DataParallel and job._island is not None:
            from . import _island_parallel

            return object.__new__(_island_parallel.class_of(job._island))
        return object.__new__(cls)

    def __init__(
        self,
        job: Job,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        shared: Iterable[Stateful] = (),
        state: Iterable[Stateful] = (),
        copy: bool | None = None,
    ) -> None:
        if job._trained:
            raise UsageError("this job already trains a model; start another job for a second one")
        if job.spec["consistency"] != "bsp":
            raise UsageError(
                f"DataParallel does not work with consistency {job.spec['consistency']}: choose bsp, or use "
                "ServerOptimizer, whose optimizer runs on the servers"
            )
        refuse_recovery(job.spec["recovery"])
        self._refuse_group(job, model)
        refuse_without_values(model)
        self.job, self.model = job, model
        self.require_backward_grad_sync = True  #: whether backward passes of later outputs are synchronised
        given = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        self._given = given  # with accelerate's wrappers, which know whether a backward pass ends a step
        self._optimizers: list[Optimizer] = [unwrapped(of) for of in given]
        self._shared = [unwrapped(of) for of in shared]
        self._sampler = job._sampler
        self._state: list[Any] = [of for of in map(unwrapped, state) if not is_of(job, of)]
        refuse_misplaced(self._shared, self._state)
        _refuse_unkept([*self._optimizers, *self._shared, *self._state])
        _separate_generators(self._state, job.slot)
        self._loaders = Loaders(self._state, self._sampler, job)
        # Other objects may depend on the loss, which the repeated step would compute with the weights of the next one.
        self._copies = all(isinstance(of, _LOADERS) for of in self._state) if copy is None else copy
        self._left: Callable[[], Left | None] = self._loaders.left
        self._closures = False  # whether an optimizer's step runs the closure that computes the gradients, once
        self._state.append(job._epochs if self._sampler is None else self._sampler)
        self._counted = Counted(job, [*self._shared, *self._state], (), (Epochs,))
        self._share = job.share
        if self._sampler is not None:
            refuse_empty_batches(self._sampler, self._share)
        trained = trained_of(model, self._optimizers)
        self._rows = _Rows(job, trained, self._mirrored(trained))
        self._names = [name for name, _ in trained]
        self._parameters = [p for _, p in trained]
        buffers = _buffers_of(model)
        self._buffers = _Bytes(job, list(buffers.values())) if buffers else None
        self._buffer_names = list(buffers)
        self._buffer_values: np.ndarray[Any, Any] | None = None  # at the last mark, as in the table
        self._frozen = Frozen(model)
        self._handed = _Bytes(job, self._frozen.handed) if self._frozen.handed else None
        self._description = Description(job, model, self._places(buffers), self._settings())
        self._flags = Flags(len(trained), job.spec["shards"])
        self._tables(job)
        self._ready: set[int] = set()  # parameters whose gradient was computed since the last synchronised pass
        self._buckets = _buckets_of(self._rows.starts)
        self._bucket_of = [b for b, of in enumerate(self._buckets) for _ in of]
        self._pass: _Pass | None = None  # the synchronised backward pass that is running, or has failed
        self._open = False  # whether a step has begun
        self._synced = False  # whether its synchronised pass has ended
        self._over = False  # whether the slot's work had ended at the mark
        self._kept: Any = None  # the state of the mark, until the step's first forward pass sends it
        self._repeats = False  # whether this process first repeats a step
        self._copy: Lot | None = None  # the shared state of the next mark, until that mark's forward pass
        self._before_copy: list[Any] = []  # of the shared objects: what small_of returned before the copy was loaded
        self._omitted: list[tuple[nn.Parameter, Any]] = []  # parameters and gradients of a step that computes nothing
        self._own: dict[str, Any] | None = None  # the own state of the mark, until the update carries it
        self._after: Any = None  # the random numbers at the end of the backward pass that is repeated
        self._had: list[bool] = [p.grad is not None for p in self._parameters]  # at the mark: which gradients exist
        self._random: Any = None  # the random numbers of the state that was loaded, until the first mark
        self._counts = False  # whether the program loops over steps, which counts them
        self._count = self._made = 0  # steps of the job, and of this process
        self._versions: list[tuple[str, torch.Tensor, int]] = []  # of the shared tensors at the mark
        self._may_be_left = False  # whether the step's first backward pass has not begun
        self._poisoned = ""  # the parameter whose mean is not finite
        self._stepped: set[int] = set()  # optimizers that have made their step since the last synchronised pass
        self._begin()
        self._frozen.begin()
        self._undo: list[Callable[[], None]] = []
        self._hook()
        if self._sampler is not None:
            self._sampler._owner = weakref.ref(self)
        job._trained = job._saves_end = True

    def _refuse_group(self, job: Job, model: nn.Module) -> None:
        """Raise UsageError for a model that is spread over processes in a way that this class does not support."""
        refuse_group(model, job, "DataParallel")

    def _mirrored(self, of: Sequence[tuple[str, nn.Parameter]]) -> list[torch.Tensor]:
        """Return the tensors that hold the values of the parameters."""
        return [local(p) for _, p in of]

    def _tables(self, job: Job) -> None:
        """Create the tables. All slots must have the same ones."""
        how: dict[str, Any] = {"dim": _DIM, "rule": Set(), "combine": "sum", "transient": True}
        try:
            self._gradients: Table = job.table("gradients", self._rows.rows, **how, non_finite="allow")
            self._flag_table: Table = job.table("gradients.flags", self._flags.rows, **how)
            if self._buffers is not None:
                self._buffer_table: Table = job.table("buffers", self._buffers.rows, dim=_DIM, rule=Set())
            if self._handed is not None:
                self._handed_table: Table = job.table("frozen", self._handed.rows, dim=_DIM, rule=Set())
        except (UsageError, Refused) as error:
            self._description.check()
            raise UsageError(
                f"another slot started with a model of a different size ({error}); all slots must use the same model "
                "for the whole job"
            ) from None
        self._pieces = self._new_pieces()

    def _new_pieces(self) -> Pieces:
        """Return the memory into which the tables are read."""
        return Pieces(self.job, self._rows)

    def _take_weights(self) -> None:
        """Set the parameters to the initial weights in the table."""
        self._pieces.take(self._gradients, self._share)

    def _settings(self) -> dict[str, Any]:
        """Return the settings that must be equal in all slots, besides the model."""
        return {}

    def _places(self, buffers: Mapping[str, torch.Tensor]) -> Iterator[Place]:
        for name, p in zip(self._names, self._parameters, strict=True):
            yield Place(name, p, "trained", "")
        for name, buffer in buffers.items():
            yield Place(name, buffer, "buffer", "")
        yield from _frozen_places(self._frozen, self._handed)

    # The beginning

    def _begin(self) -> None:
        """Distribute the initial model in clock 0, or load the state of a checkpoint."""
        while self.job._now().clock == 0:  # repeated if the job was rolled back meanwhile
            if self.job.share.rank == 0:
                self._description.put()
                for bucket in range(len(self._buckets)):
                    self._send(bucket, self._write_weights)
                self._send_buffers()
                if self._handed is not None:
                    values = np.zeros((self._handed.rows, _DIM), np.float32)
                    self._handed.put(values)
                    self._handed_table.inc_run(0, values)
            self.job.clock()
        self._description.check()
        if self._handed is not None:
            self._handed.take(self._handed_table.get_run(0, self._handed.rows))
        now = self.job._now()
        if now.left:  # the steps of this slot are done, and the weights of its last one may be gone
            raise _Left(f"slot {self.job.slot} has left the job; this program has nothing to do")
        kept, saved = self.job._load()
        refuse_other_ranks(self.job._island, kept)
        now = self.job._now()
        whole = kept is not None and ("shared" in kept or "saver" in kept)
        newest = kept is not None and saved.clock + 1 == now.clock and (whole or not now.ended)
        if now.ended and not newest and now.clock > 1:
            self.job.finish()  # otherwise the others would wait for this slot
            raise UsageError(
                "the job has ended, and this process has no state of its end, since an earlier process of the slot "
                "died meanwhile: use the model that another slot has saved"
            )
        if kept is not None:
            self._load(kept, newest)
        elif now.clock == 1:
            self._take_weights()
            self._read_buffers()
        else:
            self._join(now.clock)

    def _join(self, clock: int) -> None:
        """Load a copy of the shared state: the slot has joined the job, whose clocks the others have done so far."""
        if self._sampler is None:
            raise UsageError(
                f"slot {self.job.slot} has joined at clock {clock}, but this program divides the data itself: only "
                "with a Sampler can the number of slots change; run `perdure scale` with the former number"
            )
        if any(of is not self._sampler and not isinstance(of, _LOADERS) for of in self._state):
            self.job._warn(
                f"slot {self.job.slot} has joined at clock {clock}: its objects in state= have their initial values",
                stacklevel=4,
            )
        self._copy = self._await_copy()
        copied = _state.decode(self._copy.bytes.data, views=True)
        self._load_shared(copied["shared"], views=True)
        self._take_buffers(copied["buffers"])
        self._take_presence(copied["grads"])
        self._count = copied["step"]
        self._sampler._enter_epoch()  # the copy belongs to the point after the code at an epoch's end

    def _await_copy(self) -> Lot:
        try:
            return self.job._load_copy()
        except Done:
            self.job.finish()  # otherwise the others would wait for this slot
            raise UsageError(
                "the job has ended before this process had the weights: use the model that another slot has saved"
            ) from None

    def _take_presence(self, has: Sequence[bool]) -> None:
        """Create the gradients that existed at the mark: an optimizer skips parameters without one."""
        for p, had in zip(self._parameters, has, strict=True):
            if had:
                p.grad = torch.zeros_like(p)

    @staticmethod
    def _saved(job: Job) -> list[Any] | None:
        """Return the states of the objects in ``state`` that an earlier process of the slot has saved, or None."""
        kept, _ = job._load()
        return None if kept is None else kept["own"]["state"]

    def _load(self, kept: dict[str, Any], newest: bool) -> None:
        """Load the state of a mark. The step that begins there is repeated, unless it was after the last one."""
        if not newest:
            raise PerdureError("this slot's saved state is older than the checkpoint; this is a bug")
        own, whole = kept["own"], kept
        if "saver" in kept:
            whole, saved = self.job._load(kept["saver"])
            if whole is None or "shared" not in whole or saved.clock + 1 != self.job._now().clock:
                raise PerdureError(
                    f"slot {kept['saver']} has not saved the shared state of the checkpoint; this is a bug"
                )
        refuse_other_number("state", len(own["state"]) - 1, len(self._state) - 1)
        if "shared" in whole:
            self._load_shared(whole["shared"])
            with torch.no_grad():
                for buffer, value in zip(self._buffers_now(), whole["buffers"], strict=True):
                    buffer.copy_(value)
            if self._buffers is not None:
                self._buffer_values = self._values_of_buffers(self._buffers)
        else:
            self._copy = self._await_copy()
            copied = _state.decode(self._copy.bytes.data, views=True)
            self._load_shared(copied["shared"], views=True)
            self._take_buffers(copied["buffers"])
            # In the repeated step, what the program does next may depend on schedules and counters.
            for optimizer, groups in zip(self._optimizers, own["rates"], strict=True):
                for group, values in zip(optimizer.param_groups, groups, strict=True):
                    group.update(values)
            self._load_small(own["objects"])
            self._after = own["after"]
        for of, state in zip(self._state, own["state"], strict=True):
            load(of, state)
        self._loaders.loaded()
        self._count = own["step"]
        self._share = Share(*own["share"])
        self._random, self._repeats = own["random"], not own["over"]
        if self._repeats:
            self.job._repeats = True
            self._take_presence(own["grads"])
            if self._sampler is not None:
                self._sampler._repeat(self._share)

    def _load_shared(self, shared: dict[str, Any], views: bool = False, objects: bool = True) -> None:
        """Load a shared state.

        Args:
            shared: The state.
            views: Whether its tensors refer to memory that is needed again.
            objects: Whether to load the states of the objects in ``shared=`` as well.
        """
        refuse_other_number("optimizers", len(shared["optimizers"]), len(self._optimizers))
        refuse_other_number("shared", len(shared["objects"]), len(self._shared))
        with torch.no_grad():
            for p, value in zip(self._parameters, shared["parameters"], strict=True):
                local(p).copy_(value)
        pairs: list[tuple[Any, Any]] = [*zip(self._optimizers, shared["optimizers"], strict=True)]
        if objects:
            pairs += zip(self._shared, shared["objects"], strict=True)
        for of, state in pairs:
            load(of, copied(state, of.state_dict()) if views else state)

    def _load_small(self, objects: Sequence[Any]) -> None:
        """Load what small_of has returned of the shared objects."""
        for of, small in zip(self._shared, objects, strict=True):
            if small is not None:
                load(of, merged(small, of.state_dict()))

    def _hook(self) -> None:
        """Install the hooks in PyTorch. They do not keep the model alive."""
        owner = weakref.ref(self)

        def forward(_: nn.Module, args: Any, output: Any) -> None:
            if (of := owner()) is not None:
                of._forward(output)

        def ready(i: int, _: torch.Tensor) -> None:
            if (of := owner()) is not None:
                of._gradient_ready(i)

        def step(i: int, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> Any:
            of, closure = owner(), kwargs.get("closure")
            if of is None:
                return None
            if closure is None or not of._closures:
                of._before_step(i, optimizer)
                of._omit_step(optimizer)
                return None

            def checked() -> Any:
                result = closure()
                of._before_step(i, optimizer)
                return result

            return args, kwargs | {"closure": checked}

        def stepped(*_: Any) -> None:
            if (of := owner()) is not None and of._copy is not None:  # the step is repeated
                for p, grad in of._omitted:
                    p.grad = grad
                of._omitted = []
                of._load_shared(_state.decode(of._copy.bytes.data, views=True)["shared"], views=True, objects=False)

        # model.compile() would compile the hook as well.
        self._undo.append(self.model.register_forward_hook(torch.compiler.disable(forward)).remove)
        for i, p in enumerate(self._parameters):
            self._undo.append(p.register_post_accumulate_grad_hook(functools.partial(ready, i)).remove)
        for i, optimizer in enumerate(self._optimizers):
            self._undo.append(optimizer.register_step_pre_hook(functools.partial(step, i)).remove)
            self._undo.append(optimizer.register_step_post_hook(stepped).remove)

    # The loop

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader, and mark where a step begins.

        Args:
            loader: A Sampler's loader, or an object in ``state``, such as a StatefulDataLoader.

        Raises:
            Done: The slot's work has ended. The ``with`` block then exits normally.
            UsageError: The position in the loader is not saved.
        """
        if not isinstance(loader, Loader) and not any(of is loader for of in self._state):
            raise UsageError(
                f"the position in the {type(loader).__name__} is not saved, so a replacement process would start it "
                "from the beginning: loop over sampler.loader(loader), or list a StatefulDataLoader in state="
            )
        return self._batches(loader)

    def _batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        batches = iter(loader)  # before the mark, so that the state is not that of an abandoned pass
        while True:
            self._resume_random()  # before the mark, whose state has them
            self._mark()
            try:
                batch = next(batches)
            except StopIteration:
                self._unmark()
                return  # also if another slot has ended the job after the last batch
            if self._over:
                raise self._done()
            yield batch

    def steps(self, count: int) -> Iterator[int]:
        """Yield the numbers of the steps from the current one to ``count`` - 1, and mark where each begins.

        For programs that draw their batches themselves. Each iteration makes one synchronised backward pass.

        Args:
            count: The number of steps of the whole training.

        Raises:
            Done: The slot's work has ended. The ``with`` block then exits normally.
            UsageError: An iteration made no synchronised backward pass.
        """
        self._counts = True
        while self._count < count:
            if self._open:
                raise UsageError(
                    f"step {self._count} ran no synchronised backward pass from the model's output: each iteration "
                    "over steps must run one"
                )
            self._resume_random()
            self._mark()
            if self._over:
                raise self._done()
            yield self._count

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Do not synchronise the backward passes of outputs that the model computes within this context.

        Their gradients add up, and the next synchronised pass sends the sums.
        """
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def _mark(self) -> None:
        """Begin a step, unless one has begun. Capture the state if a checkpoint ends the step's clock."""
        if self._open:
            return
        if self._ready:
            names = ", ".join(self._names[i] for i in sorted(self._ready)[:3])
            raise UsageError(
                f"gradients of {names} were computed outside of a step, or not from the model's output: call the model "
                "itself, not its methods, within the loop over batches or steps"
            )
        if self._copy is not None and not self._repeats:
            # The repeated step has computed with this state already, and has changed it.
            self._before_copy = [small_of(of) for of in self._shared]
            self._load_shared(_state.decode(self._copy.bytes.data, views=True)["shared"], views=True)
        now = self._at_mark()
        if not self._repeats and not now.ended:
            self._take_share(now.share)
        self._frozen.check([*self._shared, *self._state])
        self._open, self._synced, self._may_be_left = True, False, True
        self._had = [p.grad is not None for p in self._parameters]
        self._made += 1
        whole = not self._repeats and (self._saves_whole(now) or 0 < now.end == now.clock + 1)
        if whole:
            self._kept = self._encoded(self._captured())
        elif now.saver >= 0 and not self._repeats:
            self._kept = self._encoded({"own": self._captured_own(), "saver": now.saver})
        elif self._copies and not self._repeats:
            small = {"rates": rates_of(self._optimizers), "objects": [small_of(of) for of in self._shared]}
            self._own = self._captured_own() | small
        whole = whole or self._made <= _CHECKED
        tensors = self._shared_tensors() if whole else zip(self._names, self._parameters, strict=True)
        self._versions = [(name, t, t._version) for name, t in tensors]

    def _at_mark(self) -> _Now:
        """Return the clock of the step that begins, and note whether the slot's work has ended."""
        now = self.job._now(self._marks())
        self._over = not self._repeats and (now.ended or self.job._end_wanted)
        return now

    def _saves_whole(self, now: _Now) -> bool:
        """Reports whether this slot saves the shared state as well as its own, in a clock that a checkpoint ends."""
        return now.saver == self.job.slot

    def _encoded(self, state: dict[str, Any]) -> Any:
        """Return the state of a mark as ``_save_kept`` needs it."""
        return _state.Encoded(state)

    def _save_kept(self) -> None:
        """Send the state of the mark in the step's first forward pass: a mark may also be dropped."""
        if self._kept is not None:
            kept, self._kept = self._kept, None
            self._store(kept)

    def _store(self, kept: Any) -> None:
        """Save a state that ``_encoded`` has returned."""
        self.job._save(kept)

    def _unmark(self) -> None:
        """Drop the mark at an epoch's end: the code after it belongs to no step."""
        if not self._ready:
            self._open, self._kept, self._own = False, None, None
            if self._copy is not None and not self._repeats:
                # The copy belongs to the mark after this code. Of its values, this code needs the weights.
                self._load_small(self._before_copy)

    def _marks(self) -> int:
        """Return flags: whether this process has the shared state of the clock's start."""
        if self._repeats:
            return 0
        return _agent.MARKS | (_agent.SAVES_OWN if self._copies else 0)

    def _captured(self, over: bool = False) -> dict[str, Any]:
        """Return the whole state of this moment. over: after the last step."""
        buffers = [b.clone() for b in self._buffers_now()]
        return {"own": self._captured_own(over), "shared": self._shared_state(), "buffers": buffers}

    def _captured_own(self, over: bool = False) -> dict[str, Any]:
        """Return the slot's own state of this moment."""
        return {
            "grads": [p.grad is not None for p in self._parameters],
            "state": [copy.deepcopy(of.state_dict()) for of in self._state],
            "random": _random(),
            "step": self._count,
            "share": list(self._share),
            "over": over,
        }

    def _shared_state(self) -> dict[str, Any]:
        """Return the shared state of this moment. Parameters and states of optimizers are not copied."""
        return {
            "parameters": [local(p) for p in self._parameters],
            "optimizers": [of.state_dict() for of in self._optimizers],
            "objects": [of.state_dict() for of in self._shared],
        }

    def _resume_random(self) -> None:
        """Set the random numbers of the saved state, at this process's first mark."""
        if self._random is not None:
            if not self._counts:
                self._counted.warn_taken_over()
            _set_random(self._random)
            self._random = None

    def _shared_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of the shared state, with names for messages."""
        yield from zip(self._names, self._parameters, strict=True)
        for of in [*self._optimizers, *self._shared]:
            yield from _tensors_of(of.state_dict(), f"the state of {type(of).__name__}")

    def _take_share(self, share: Share) -> None:
        """Take the slot's share of the data of a step. A Sampler divides them in each step."""
        if share == self._share:
            return
        if self._sampler is None:
            raise UsageError(
                f"the job now has {share.of} slots instead of {self._share.of}, but this program divides the data "
                f"itself, so samples would be counted twice or skipped: run `perdure scale {self._share.of}`, or draw "
                "the batches with a Sampler"
            )
        refuse_empty_batches(self._sampler, share)
        self._share = share

    # A step

    def _forward(self, output: Any) -> None:
        """Prepare the backward pass of an output of the model."""
        if not torch.is_grad_enabled():
            return
        outputs = [t for t in _outputs(output) if t.grad_fn is not None]
        if not outputs:
            return
        synchronises = self.require_backward_grad_sync and not any(map(accumulates, self._given))
        if synchronises and not self._open:
            raise UsageError(
                "the model was called outside of a step, or again after the step's synchronised backward pass: loop "
                "over batches or steps, make one synchronised pass in each step, use no_sync for others, and evaluate "
                "under torch.no_grad()"
            )
        if self._open and not self._repeats:
            self._copy = None
        self._save_kept()
        if self._pass is not None:
            raise UsageError("a backward pass of this step has failed; exit, and start this program again")
        if self._made <= _CHECKED:
            for t in outputs:
                t.register_hook(self._refuse_left_gradients)
        if synchronises:
            for t in outputs:
                t.register_hook(self._output_gradient)

    def _refuse_left_gradients(self, _: torch.Tensor) -> None:
        """Raise UsageError if a step's first backward pass adds to gradients of an earlier step: they are not saved."""
        left, self._may_be_left = self._may_be_left, False
        if not left or self._repeats or not self._open:
            return
        for i, p in enumerate(self._parameters):
            if i not in self._ready and p.grad is not None and not p.grad.is_sparse and bool(local(p.grad).any()):
                raise UsageError(
                    f"the step begins with a gradient of {self._names[i]} that an earlier step has left: call "
                    "zero_grad before each step's first backward pass; to add up gradients of several passes, make "
                    "all but the last within no_sync"
                )

    def _output_gradient(self, _: torch.Tensor) -> None:
        """Let the backward pass that reaches an output end with the exchange. It may reach those of several calls."""
        if self._pass is None:
            self._pass = _Pass()
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    def _gradient_ready(self, i: int) -> None:
        """Send the gradients of a bucket once all of them are there, while the backward pass continues."""
        self._ready.add(i)
        each = self._pass
        if each is None:
            return
        each.ran = True
        if not self._open or self._repeats:
            return
        bucket = self._bucket_of[i]
        if bucket in each.sent:
            each.again.add(i)
            return
        each.fresh.add(i)
        if len(self._buckets) > 1 and each.fresh.issuperset(self._buckets[bucket]):
            each.sent.add(bucket)
            self._send(bucket, self._write)
            self._gradients.flush()

    def _send(self, bucket: int, write: Callable[[int, torch.Tensor], None]) -> None:
        """Hand over the values of a bucket, in memory that the agent lends. write writes those of a parameter."""
        of, starts = self._buckets[bucket], self._rows.starts
        if starts[of.start] == starts[of.stop] and of.stop < len(self._parameters):
            return  # empty parameters
        end = starts[of.stop] if of.stop < len(self._parameters) else self._rows.rows
        flat = torch.from_numpy(self._gradients.deltas(starts[of.start], end - starts[of.start]).reshape(-1))
        with torch.no_grad():
            for i in of:
                first = (starts[i] - starts[of.start]) * _DIM
                last = (starts[i + 1] if i + 1 < of.stop else end) - starts[of.start]
                count = self._parameters[i].numel()
                flat[first + count : last * _DIM] = 0
                write(i, flat[first : first + count])

    def _write_weights(self, i: int, place: torch.Tensor) -> None:
        values = self._rows.tensors[i].detach()
        place.view(values.shape).copy_(values)

    def _write(self, i: int, place: torch.Tensor) -> None:
        """Write a gradient, or zeros if it was not computed."""
        if i not in self._ready:
            place.zero_()
            return
        values = self._whole_gradient(i)
        place.view(values.shape).copy_(values)
        if (weight := self._weight()) != 1:
            place.mul_(weight)

    def _gradient(self, i: int) -> torch.Tensor:
        """Return a gradient that was computed. Raises UsageError if it is of a kind that cannot be sent."""
        grad = self._parameters[i].grad
        if grad is None or grad.layout != torch.strided or grad.requires_grad:
            how = "sparse" if grad is not None and grad.layout != torch.strided else "part of a graph"
            raise UsageError(
                f"the gradient of {self._names[i]} is {how}; use sparse=False, and backward without create_graph=True"
            )
        return local(grad)

    def _whole_gradient(self, i: int) -> torch.Tensor:
        """Return the slot's gradient."""
        return self._gradient(i)

    def _weight(self) -> float:
        """Return the weight of this slot's gradients: the number of samples, if a Sampler counts them."""
        return 1.0 if self._sampler is None else float(self._sampler._place.samples)

    def _end_backward(self) -> None:
        """Replace the gradients by their means over all slots."""
        each, self._pass = self._pass, None
        if each is None or not each.ran:
            return  # torch.autograd.grad, for example of a penalty, has added nothing
        if not self._open:
            raise UsageError(
                "a second synchronised backward pass in one step: sum up the losses, or compute all but the last "
                "within no_sync; closures (LBFGS) and steps of two passes (SAM) are not supported"
            )
        for name, tensor, version in self._versions:
            if tensor._version != version:
                raise UsageError(
                    f"{name} was changed between the start of the step and the end of backward, where the shared state "
                    "must not change: change it after backward, or keep it in a buffer of the model"
                )
        self._versions = []
        if not self._repeats:
            self._exchange(each)
        else:
            if self._sampler is not None:
                self._sampler._after_clock(advanced=False)
            if self._after is not None:  # draws may have depended on the weights
                _set_random(self._after)
                self._after = None
        self._take_means()
        self._repeats = self.job._repeats = False
        self._ready.clear()
        self._stepped.clear()
        self._open, self._synced = False, True
        self._count += 1
        self._counted.refuse_second_pass(self._loaders.again())
        self._loaders.check()
        self._loaders.stepped()

    def _exchange(self, each: _Pass) -> None:
        """End the clock with this slot's gradients."""
        before = self.job._now()
        if before.ended:
            raise self._cut_off()
        for bucket in range(len(self._buckets)):
            if bucket not in each.sent:
                self._send(bucket, self._write)
        for i in sorted(each.again):  # computed in several parts, as by reentrant checkpoints
            place = torch.zeros(self._rows.starts[i + 1] - self._rows.starts[i], _DIM)
            self._write(i, place.view(-1)[: self._parameters[i].numel()])
            self._gradients.inc_run(self._rows.starts[i], place.numpy())
        self._flag_table.inc_run(0, self._flags.written(self._weight(), self._ready, self._checksum()))
        self._send_buffers()
        if self._own is not None:
            own, self._own = self._own, None
            state: dict[str, Any] = {"own": own | {"after": _random()}}
            if before.end == before.clock + 1:  # unknown at the mark; forward and backward only read the shared state
                state |= {"shared": self._shared_state(), "buffers": self._buffers_of_mark()}
            self.job._save(_state.Encoded(state))
        self.job.clock()
        now = self.job._now()
        if now.generation != before.generation:
            raise RolledBack("the job was rolled back; exit, and start this program again")
        if now.clock == before.clock:
            raise self._cut_off()

    def _take_means(self) -> None:
        """Set the gradients to the means of the clock that has ended."""
        flags = self._read_flags()
        self._refuse_older_means()
        if flags[LEAVING]:  # another slot has made its last step
            raise self._cut_off()
        total, senders = float(flags[0]), int(flags[1])
        if senders != self._share.of:
            if self.job._now().ended:
                raise self._cut_off()
            raise UsageError(
                f"{self._share.of - senders} of {self._share.of} slots sent no gradients in this clock: all slots must "
                "make the same number of steps"
            )
        if not self._flags.equal(flags):
            if self._count == 0:
                raise UsageError(
                    "the optimizers or the objects in shared= differ between the slots at the start: give all slots "
                    "the same settings, and create averages of the weights after setting the same seed in all slots"
                )
            raise PerdureError(
                f"the weights of the slots differ in step {self._count}: all machines must compute the same bits, with "
                "the same version of torch, kind of processor and number of threads, and objects that change the "
                "weights must be in shared="
            )
        has = {i for i, present in enumerate(flags[HEAD : HEAD + len(self._parameters)]) if present}
        with torch.no_grad():
            poisoned = self._read_means(has, total)
        self._poisoned = self._names[min(poisoned)] if poisoned else ""
        self._refuse_older_means()
        self._read_buffers()

    def _read_means(self, has: set[int], total: float) -> set[int]:
        """Set the gradients to the means. Return the numbers of the parameters whose mean is not finite.

        Args:
            has: The numbers of the parameters that have a mean.
            total: The sum of the slots' weights.
        """
        poisoned: set[int] = set()
        for i in has:
            if self._parameters[i].grad is None:
                self._parameters[i].grad = torch.empty_like(self._parameters[i])
        for first, values in self._pieces.read(self._gradients, self._share):
            poisoned |= self._not_finite(has, first, values)
            for i, at, part in self._pieces.parts(first, values):
                grad = self._parameters[i].grad
                if i in has and grad is not None:
                    for to, sums in placed(local(grad), at, part):
                        divide(sums, total, to)
        return poisoned

    def _not_finite(self, has: set[int], first: int, values: torch.Tensor) -> set[int]:
        """Return the numbers of those parameters that have values in a piece that are not finite."""
        if math.isfinite(float(values.sum())):  # one pass; an overflow is looked at again
            return set()
        return {i for i, _, part in self._pieces.parts(first, values) if i in has and not torch.isfinite(part).all()}

    def _refuse_older_means(self) -> _Now:
        """Raise Done if the job ended before this slot's last clock: its reads then return older means."""
        now = self.job._now()
        if 0 < now.end < now.clock:
            raise self._cut_off()
        return now

    def _read_flags(self) -> np.ndarray[Any, Any]:
        """Wait for the end of the clock, and return its flags. Save a copy of the shared state meanwhile if needed.

        The clock cannot end before the process that needs the copy has it, so the state does not change meanwhile.
        """
        while True:
            try:
                return self._flag_table._get_unless_copy_wanted(self._flags.rows).reshape(-1)
            except _CopyWanted:
                copied = {"shared": self._shared_state(), "buffers": self._buffer_values}
                self.job._save_copy(_state.Encoded(copied | {"grads": self._had, "step": self._count}))

    def _before_step(self, i: int, optimizer: Optimizer) -> None:
        """Refuse an optimizer's step that the other slots would not make in the same way."""
        if not self._synced or i in self._stepped:
            raise UsageError(
                f"{type(optimizer).__name__} makes a step without a synchronised backward pass since its last one: the "
                "slots would train different weights"
            )
        self._stepped.add(i)
        self._counted.refuse_set_rates(self._optimizers, self._counts)
        if self._made <= _CHECKED:
            self._refuse_unlisted(optimizer)
        if self._poisoned and getattr(optimizer, "found_inf", None) is None:
            raise NonFinite(
                f"the mean gradient of {self._poisoned} contains NaN or Inf in step {self._count - 1}; check the loss "
                "and the learning rate, or use a GradScaler"
            )

    def _omit_step(self, optimizer: Optimizer) -> None:
        """Let a repeated step's optimizer compute nothing, since the copy has the result: it skips absent gradients."""
        if self._copy is None or not type(optimizer).__module__.startswith("torch.optim."):
            return
        held = [p for group in optimizer.param_groups for p in group["params"]]
        self._omitted = [(p, p.grad) for p in held]
        for p in held:
            p.grad = None

    def _refuse_unlisted(self, optimizer: Optimizer) -> None:
        """Raise UsageError if a scheduler of the optimizer, or a GradScaler that calls its step, is not saved."""
        listed = [*self._shared, *self._state]
        plain = (LRScheduler, nn.Module, torch.amp.GradScaler, Epochs)
        opaque = any(not isinstance(of, plain) and not is_loader(of) for of in listed)  # one may contain a scheduler
        known = opaque or any(isinstance(of, LRScheduler) and of.optimizer is optimizer for of in listed)
        if getattr(optimizer.step, "_wrapped_by_lr_sched", False) and not known:
            raise UsageError(
                f"a scheduler changes the learning rate of {type(optimizer).__name__}, but is not in shared=: a "
                "replacement process of this slot would start the schedule from the beginning"
            )
        scales = torch.amp.GradScaler.step.__code__
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_FRAMES):
            if frame is None:
                return
            if frame.f_code is scales:  # asking others for their variables would keep these alive
                scaler = frame.f_locals["self"]
                if not opaque and all(of is not scaler for of in listed):
                    raise UsageError(
                        "the GradScaler that calls the optimizer's step is not in shared=: a replacement process of "
                        "this slot would start with another scale"
                    )
                return
            frame = frame.f_back

    def _checksum(self) -> int:
        """Return a checksum of a part of the weights. The parts take turns. That of step 0 covers all other objects."""
        check = self._sum_of_weights()
        if self._count == 0:
            # An average without an update has no values of its own yet.
            empty = [isinstance(of, AveragedModel) and int(of.n_averaged) == 0 for of in self._shared]
            kept = [of.state_dict() for of, none in zip(self._shared, empty, strict=True) if not none]
            check += _state.Encoded([[of.state_dict() for of in self._optimizers], kept]).checksum()
        return check & 0xFFFFFFFF

    def _sum_of_weights(self) -> int:
        """Return the sum of the bits of a part of the weights. So it does not matter how ranks divide them."""
        return sum(bits_of(local(p), 0, len(p) if p.dim() else 1, self._count % PARTS) for p in self._parameters)

    # Buffers: those of the slot with rank 0, as in DistributedDataParallel

    def _buffers_now(self) -> list[torch.Tensor]:
        """Return the model's buffers: a module may have assigned a new tensor to one."""
        now = _buffers_of(self.model)
        for name in self._buffer_names:
            if name not in now:
                raise UsageError(f"the buffer {name} was removed; the buffers of the model must stay the same")
        return [now[name] for name in self._buffer_names]

    def _send_buffers(self) -> None:
        if self._buffers is not None and self.job.share.rank == 0:
            self._buffer_table.inc_run(0, self._values_of_buffers(self._buffers))

    def _buffers_of_mark(self) -> list[torch.Tensor]:
        """Return the buffers at the start of the step."""
        if self._buffers is None or self._buffer_values is None:
            return [b.clone() for b in self._buffers_now()]
        self._buffers.tensors = [torch.empty_like(b) for b in self._buffers_now()]
        self._buffers.take(self._buffer_values)
        return self._buffers.tensors

    def _values_of_buffers(self, buffers: _Bytes) -> np.ndarray[Any, Any]:
        buffers.tensors = self._buffers_now()
        values = np.zeros((buffers.rows, _DIM), np.float32)
        buffers.put(values)
        return values

    def _read_buffers(self) -> None:
        if self._buffers is not None:
            self._take_buffers(self._buffer_table.get_run(0, self._buffers.rows))

    def _take_buffers(self, values: np.ndarray[Any, Any] | None) -> None:
        if self._buffers is not None and values is not None:
            self._buffers.tensors = self._buffers_now()
            self._buffers.take(values)
            self._buffer_values = values

    # The end

    def _cut_off(self) -> Done:
        """End the slot's work in the middle of a step that does not count, and undo its changes of buffers."""
        self._take_buffers(self._buffer_values)
        self._repeats = self.job._repeats = False  # this process saves the state of the job's end, like the others
        return self._done()

    def _done(self) -> Done:
        # A slot that leaves the job by plan leaves no samples untrained: a Sampler gives them to the others.
        leaves = self._sampler is not None and self._sampler._leaves()
        self._ending.cut = not leaves and not self.job._end_wanted  # otherwise this program has ended the job itself
        return Done("the slot's work has ended; leave the training loop")

    def _step_without_samples(self) -> None:
        raise UsageError(
            "the last batch of the epoch has no sample for this slot, which then could not make the optimizer's step: "
            "choose drop_last=True"
        )

    @functools.cached_property
    def _ending(self) -> Ending:
        return Ending(self.job, "first")

    def export(self, path: str | os.PathLike[str], *, partial: bool = False) -> None:
        """Write this process's model in the safetensors format, with the tensors of the model's state_dict.

        All slots write the same tensors after the same step. The file is complete or absent. Needs the package
        safetensors. ``perdure export RUN`` writes the same tensors if the loop has ended the job, and otherwise
        earlier weights: those from before a checkpoint's last step.

        Args:
            path: The file. An existing one is replaced.
            partial: Whether to omit tensors that cannot be written.

        Raises:
            UsageError: The state_dict has values that safetensors cannot hold, or safetensors is not installed.
        """
        values: dict[str, torch.Tensor | None] = {}
        values.update(zip(self._names, map(local, self._parameters), strict=True))
        values.update(zip(self._buffer_names, self._buffers_now(), strict=True))
        values.update(self._frozen.values())
        self._description.export(path, values, partial, self.job.version)

    def finish(self) -> None:
        """End this slot's work and wait for all slots."""
        left = self._left()
        if self._copy is not None and not self._repeats:  # the loop has ended before the mark that would have loaded it
            self._load_shared(_state.decode(self._copy.bytes.data, views=True)["shared"], views=True)
            self._copy = None
        if not self._repeats:
            self._keep_end()
        self.job._to_end(lambda: None if self._repeats else self._send_end())
        self._ending.say(left)
        self.job.finish()
        self._let_go()

    def _keep_end(self) -> None:
        """Save the state after the last step in a clock in which all slots do so.

        The job then ends with this clock, so its last checkpoint has the model.
        """
        while not (before := self.job._now(self._marks())).ended:
            self._send_end()
            self.job.clock()
            if self.job._now().generation != before.generation:
                raise RolledBack("the job was rolled back while it was ending; start this program again")
            if int(self._read_flags()[LEAVING]) == before.share.of:
                return

    def _send_end(self) -> None:
        self._store(self._encoded(self._captured(over=True)))
        self._flag_table.inc_run(0, self._flags.leaving())


@dataclasses.dataclass
class _Pass:
    """A synchronised backward pass of outputs of the model."""

    ran: bool = False  # whether it has computed the gradient of any parameter
    fresh: set[int] = dataclasses.field(default_factory=set)  # parameters whose gradient it has computed
    sent: set[int] = dataclasses.field(default_factory=set)  # buckets that were sent before its end
    again: set[int] = dataclasses.field(default_factory=set)  # parameters with more gradient after that


def _buckets_of(starts: Sequence[int]) -> list[range]:
    """Return the parameters of each bucket. The last ones, whose gradients are computed first, fill their buckets."""
    buckets, end = [], len(starts) - 1
    for i in reversed(range(len(starts) - 1)):
        if i == 0 or (starts[end] - starts[i]) * _DIM * 4 >= _BUCKET:
            buckets.append(range(i, end))
            end = i
    return buckets[::-1]


def _outputs(output: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in an output of the model."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for of in output.values():
            yield from _outputs(of)
    elif isinstance(output, (list, tuple)):
        for of in output:
            yield from _outputs(of)
    elif dataclasses.is_dataclass(output):
        for field in dataclasses.fields(output):
            yield from _outputs(getattr(output, field.name))


def _tensors_of(state: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in a state, with their paths."""
    if isinstance(state, torch.Tensor):
        yield path, state
    elif isinstance(state, Mapping):
        for key, of in state.items():
            yield from _tensors_of(of, f"{path}[{plain_name(key)!r}]" if isinstance(key, str) else path)
    elif isinstance(state, (list, tuple)):
        for of in state:
            yield from _tensors_of(of, path)
