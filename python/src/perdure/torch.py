"""PyTorch on Perdure: data parallelism, and DiLoCo, whose processes and servers may all be killed.

Weights lie in a table for each group of parameters, in rows of 1,024 values, each parameter from a new row on. A table
holds what training has added to the weights that it began with, which are rows of another table: slot 0 writes them in
clock 0. Buffers, such as the running means of BatchNorm, are slot 0's.

With each of its updates a slot saves what it needs to go on: the states of what ``state`` lists, and of random numbers.
A process that takes the slot over finds its weights, and that, as they were when the last update that counts was made.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import math
import random
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeGuard, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from . import _clip, _state
from ._counted import Counted
from ._draft import Drafts
from ._ending import Ending, Left
from ._frozen import Frozen, named_parameters, plain_name, refuse_island, refuse_without_values
from ._inner import Inner, load, refuse_schedulers
from ._late import Late, is_loader, state_of
from ._loaders import Loaders
from ._notice import Notice
from ._pinned import Pinned
from .errors import Done, NonFinite, Refused, RolledBack, UsageError
from .job import Floats, Job, Table
from .rules import FTRL, SGD, Adagrad, Adam, Add, Momentum, Nesterov, Rule, Set

_DIM = 1024  # values of a row
_NAME = "weights.{}"  # of a group's table
_MOST_KEPT = 1 << 30  # bytes of what a slot keeps, as SaveState has it
_HELD = (torch.float32, torch.float16, torch.bfloat16)  # what float32 holds exactly
#: Backward passes without a step of DiLoCo's inner optimizer at which the weights are looked at. Not the second: some
#: programs run the model with other weights within a step.
_LOOKS = (1, 16)
_NEXT_TO_NOTHING = 1e-9  # the weight of a slot that does nothing in a clock; 0 is none


#: Jobs that train a model: another one would be in the same tables.
_TRAINED: weakref.WeakSet[Job] = weakref.WeakSet()


class Stateful(Protocol):
    """What can be kept: a StatefulDataLoader, a sampler, an optimizer."""

    def state_dict(self) -> dict[str, Any]:
        """What it needs to go on."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Go on from that."""


class Count:
    """Counts what this slot's part of an outer step is worth, in tokens for example: ``DiLoCo``'s ``weights``.

    Add a batch before the optimizer's step that it counts for: so a draft behind that step has it, too.
    """

    def __init__(self) -> None:
        self._counted = 0.0

    def add(self, n: float) -> None:
        """Count n more: a number, or a tensor of one value."""
        n = float(n)
        if not 0 <= n < math.inf:
            raise UsageError(f"{n} was to be counted; count by numbers that are not negative")
        self._counted += n

    def __call__(self) -> float:
        """Return the count, and start from 0 again. A count of 0 weighs next to nothing, with a RuntimeWarning."""
        if not self._counted:
            warnings.warn(
                "nothing was counted since the last outer step, so this slot's part counts next to nothing; call add "
                "before the optimizer's step",
                RuntimeWarning,
                stacklevel=2,
            )
            return _NEXT_TO_NOTHING
        counted, self._counted = self._counted, 0.0
        return counted

    def state_dict(self) -> dict[str, Any]:
        """What it needs to go on."""
        return {"counted": self._counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from that."""
        self._counted = state["counted"]


class Epochs:
    """Counts epochs, also across processes: ``for epoch in epochs``, with ``epochs = perdure.Epochs(3)`` in ``state``.

    A process that takes the slot over continues in the epoch that its predecessor was in. ``range(3)`` would start from
    0 again there.
    """

    def __init__(self, count: int) -> None:
        if count < 0:
            raise UsageError(f"Epochs({count}): give the number of epochs, 0 or more")
        self._count, self._epoch = count, 0

    def __iter__(self) -> Iterator[int]:
        """The epochs that are left, from the one that has begun."""
        while self._epoch < self._count:
            yield self._epoch
            self._epoch += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch that has begun."""
        return {"epoch": self._epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the epoch of a state."""
        self._epoch = state["epoch"]


class _Rows:
    """Parameters as rows of float32, for all tables that lie alike: each begins a row."""

    def __init__(self, job: Job, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in tensors:
            if tensor.dtype not in _HELD:
                raise UsageError(
                    f"{name} is of {tensor.dtype}, and servers hold float32: take model.float(), or train it without"
                )
        self.names = [name for name, _ in tensors]
        self.tensors = [tensor for _, tensor in tensors]
        self.starts = np.cumsum([0] + [-(-t.numel() // _DIM) for t in self.tensors]).tolist()
        self.rows = max(self.starts[-1], job.spec["shards"])  # a table has no fewer rows than there are shards

    def views(self, values: Floats) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor, and its place in values of shape (rows, 1024)."""
        flat = torch.from_numpy(values.reshape(-1))
        for tensor, start in zip(self.tensors, self.starts, strict=False):
            yield tensor, flat[start * _DIM : start * _DIM + tensor.numel()].view(tensor.shape)

    def put(self, values: Floats) -> None:
        """Write the tensors into values."""
        for tensor, place in self.views(values):
            place.copy_(tensor.detach())

    def take(self, values: Floats) -> None:
        """Write values into the tensors."""
        with torch.no_grad():
            for tensor, place in self.views(values):
                tensor.copy_(place)


class _Bytes:
    """Tensors of any type in rows: two bytes of theirs are the value of a float32, so that all come back exactly."""

    def __init__(self, job: Job, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        sizes = [(t.numel() * t.element_size() + 1) // 2 for t in tensors]
        self.starts = np.cumsum([0, *sizes]).tolist()
        self.rows = max(-(-self.starts[-1] // _DIM), job.spec["shards"])

    def put(self, values: Floats) -> None:
        """Write the tensors into values."""
        flat = values.reshape(-1)
        for tensor, start, end in zip(self.tensors, self.starts, self.starts[1:], strict=False):
            data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            flat[start:end] = np.frombuffer(data + bytes(len(data) % 2), np.uint16)

    def take(self, values: Floats) -> None:
        """Write values into the tensors."""
        flat = values.reshape(-1)
        for tensor, start, end in zip(self.tensors, self.starts, self.starts[1:], strict=False):
            data = flat[start:end].astype(np.uint16).view(np.uint8)[: tensor.numel() * tensor.element_size()]
            with torch.no_grad():
                tensor.copy_(torch.from_numpy(data.copy()).view(tensor.dtype).reshape(tensor.shape))


class _Layout:
    """What each row of the tables of weights is, in a table: slots must agree on it.

    A row for each tensor: the two halves of a checksum of its name, shape and type, and a 1. A row behind them has a 2.
    Frozen parameters that are not handed out have another row each, with the checksum of their values.
    """

    def __init__(
        self, job: Job, tensors: Sequence[tuple[str, torch.Tensor]], frozen: Sequence[tuple[str, torch.Tensor, str]]
    ) -> None:
        every = [(name, f"{name} {tuple(t.shape)} {t.dtype}") for name, t in tensors]
        every += [(f"the frozen {name}", f"frozen {name} {tuple(t.shape)} {t.dtype}") for name, t, _ in frozen]
        self._names = [name for name, _ in every]
        checks = [zlib.crc32(text.encode()) for _, text in every]
        self._values = {len(checks) + i: name for i, (name, _, check) in enumerate(frozen) if check}
        checks += [int(check, 16) for _, _, check in frozen if check]
        self._rows = np.zeros((len(checks) + 1, 3), np.float32)
        for row, crc in zip(self._rows, checks, strict=False):
            row[:] = crc >> 16, crc & 0xFFFF, 1
        self._rows[-1, 2] = 2
        self._ids = np.arange(len(self._rows), dtype=np.uint64)
        self._table: Table = job.table("layout", dim=3, rule=Set())

    def put(self) -> None:
        """Write it."""
        self._table.inc(self._ids, self._rows)

    def check(self) -> None:
        """Raise UsageError where another slot has written another one, and name what differs first."""
        theirs = self._table.get(self._ids)
        there = theirs[:, 2] != 0  # a row may have been lost, where updates may be
        differ = np.flatnonzero((theirs != self._rows).any(axis=1) & there)
        if not len(differ):
            return
        first = int(differ[0])
        if first in self._values and theirs[first, 2] == 1:
            there_, here = (f"{int(row[0]) << 16 | int(row[1]):08x}" for row in (theirs[first], self._rows[first]))
            raise UsageError(
                f"the frozen parameter {self._values[first]} has the checksum {here}, and {there_} in the process that "
                "began the job; all processes must freeze the same values: load them from the same file, or call "
                "torch.manual_seed before the model is made"
            )
        if first >= len(self._names):
            what = f"has more parameters and buffers than the {first} of this one"
        elif theirs[first, 2] == 2:
            what = f"has no {self._names[first]}"
        else:
            what = f"has another name, shape or type in the place of {self._names[first]}"
        raise UsageError(f"the slot that began this job {what}; all slots must have the same model, and keep it")


class _Group:
    """A group of parameters, with one rule. keep: whether an update is made of the weights that it goes on from."""

    def __init__(self, job: Job, name: str, rows: _Rows, rule: Rule, combine: str, keep: bool) -> None:
        self.rows = rows
        self.decay = rule.decay
        if rule.decay:  # of the weights, and not of what was added to them: see DataParallel.step
            rule = type(rule)(**{k: v for k, v in vars(rule).items() if k != "decay"})
        self.begun = job.table(f"{name}.begin", rows.rows, dim=_DIM, rule=Set())
        self.table = job.table(name, rows.rows, dim=_DIM, rule=rule, combine=combine)
        shape = (rows.rows, _DIM)
        self.first, self.added = job.empty(shape), job.empty(shape)
        self.first[...] = 0
        self.firsts = [place for _, place in rows.views(self.first)]
        self.weights: Floats | None = None  # at the present clock, where the next update needs them
        if self.decay or keep:
            self.weights = np.zeros(shape, np.float32)
            self.was = [place for _, place in rows.views(self.weights)]

    def send(self, touched: Sequence[bool], write: Callable[[int, torch.Tensor], None]) -> None:
        """Have this clock's update written into the memory that it is sent from, a tensor after the other.

        touched: which tensors have an update; rows of others do not run their rule. write: is given the number of one,
        and its place.
        """
        starts, at = self.rows.starts, 0
        while at < len(touched):
            end = at
            while end < len(touched) and touched[end]:  # neighbours together
                end += 1
            if starts[end] > starts[at]:
                values = self.table.deltas(starts[at], starts[end] - starts[at])
                flat = torch.from_numpy(values.reshape(-1))
                for i in range(at, end):
                    tensor, first = self.rows.tensors[i], (starts[i] - starts[at]) * _DIM
                    write(i, flat[first : first + tensor.numel()].view(tensor.shape))
                    flat[first + tensor.numel() : (starts[i + 1] - starts[at]) * _DIM] = 0
            at = end + 1

    def changed(self) -> Iterator[str]:
        """Names of the parameters whose values are not those that the program was given."""
        for i, (_, added) in enumerate(self.rows.views(self.added)):
            tensor = self.rows.tensors[i]
            if not torch.equal(tensor.detach().cpu(), (self.firsts[i] + added).to(tensor.dtype)):
                yield self.rows.names[i]

    def fetch(self) -> None:
        """Read what was added, and the weights where the next update needs them."""
        self.table.get_run(0, self.rows.rows, out=self.added)
        if self.weights is not None:
            np.add(self.first, self.added, out=self.weights)

    def read(self) -> None:
        """Bring the parameters to what they are at the present clock."""
        self.fetch()
        if self.weights is not None:
            self.rows.take(self.weights)
            return
        with torch.no_grad():
            for (tensor, added), (_, first) in zip(
                self.rows.views(self.added), self.rows.views(self.first), strict=True
            ):
                if tensor.dtype == torch.float32 and tensor.device.type == "cpu":
                    torch.add(first, added, out=tensor)  # without a copy between
                else:
                    tensor.copy_(first + added)


_M = TypeVar("_M", bound="_Model")


class _Model:
    """What both ways to train have in common."""

    _keep = False  # whether updates are made of weights
    _schedulers: Sequence[Any] = ()

    def __init__(
        self,
        job: Job,
        model: nn.Module,
        groups: Sequence[tuple[Sequence[tuple[str, nn.Parameter]], Rule]],
        combine: str,
        state: Iterable[Stateful],
        end: str,
    ) -> None:
        if job in _TRAINED:
            raise UsageError("this job has a DataParallel or DiLoCo already; one job trains one model")
        refuse_island(model)
        self.job, self.model = job, model
        self._state = list(state)
        self._share = job.share
        self._loaders = Loaders(self._state)
        self._left: Callable[[], Left | None] = self._loaders.left
        _refuse_large(self._state)
        refuse_without_values(model)
        _refuse_unreached(job, self._state)
        _refuse_unkept(self._state)
        _refuse_trained(self._state, [p for of, _ in groups for _, p in of])
        for of in self._state:
            if getattr(of, "generator", of) is None:
                # A loader that begins again, amid its data, would take a number from those of the program.
                of.generator = torch.Generator().manual_seed(torch.initial_seed() + job.slot)  # type: ignore[attr-defined]
        rows = [(_Rows(job, of), rule) for of, rule in groups]
        buffers = _buffers_of(model)
        self._buffers = _Bytes(job, list(buffers.values())) if buffers else None
        self._buffer_names, self._persistent = list(buffers), _persistent_of(model)
        self._frozen = Frozen(model)
        self._handed = _Bytes(job, self._frozen.handed) if self._frozen.handed else None
        named = [of for group, _ in groups for of in group]
        self._layout = _Layout(job, [*named, *buffers.items()], self._frozen.compared())
        try:
            self._groups = [
                _Group(job, _NAME.format(i), of, rule, combine, self._keep) for i, (of, rule) in enumerate(rows)
            ]
            self._ending = Ending(job, end)
            if self._buffers is not None:
                self._buffer_table: Table = job.table("buffers", self._buffers.rows, dim=_DIM, rule=Set())
            if self._handed is not None:
                self._handed_table: Table = job.table("frozen", self._handed.rows, dim=_DIM, rule=Set())
        except (UsageError, Refused) as error:
            raise UsageError(
                f"another slot has begun with a model of another size, or another rule ({error}); all slots must have "
                "the same ones, and keep them"
            ) from None
        if self._buffers is not None:
            self._buffer_values = job.empty((self._buffers.rows, _DIM))
            self._buffer_values[...] = 0
        self._pinned = Pinned()
        self._half = False  # a step has been interrupted before its clock had ended
        self._taken_over = False  # from another process, and no step was made since
        self._late = Late(self._state, [p for _, p in named])
        self._counted = Counted(job, self._state, self._schedulers, Epochs, (Count,))
        self._undo: list[Callable[[], None]] = []  # what finish undoes
        self._begin()
        self._frozen.begin()
        if named:
            # The last parameter's gradient is the first of a backward pass: the loop's next step has begun.
            backward = weakref.WeakMethod(self._backward)  # a hook would keep the model alive
            hook = named[-1][1].register_post_accumulate_grad_hook(lambda _: (call := backward()) and call())
            self._undo.append(hook.remove)
        _TRAINED.add(job)

    def _backward(self) -> None:
        self._late.compare()

    def _begin(self) -> None:
        """Write the first weights, or read those that are there, and go on where the slot was."""
        while self.job._now().clock == 0:  # again where the job was rolled back meanwhile
            if self.job.share.rank == 0:
                self._layout.put()
                for g in self._groups:
                    g.rows.put(g.first)
                    g.begun.inc_run(0, g.first)
                self._send_buffers()
                self._hand_out()
            self._weigh(1.0)
            self.job.clock()
        self._layout.check()
        for g in self._groups:
            g.begun.get_run(0, g.rows.rows, out=g.first)
        if self._handed is not None:
            self._handed.take(self._handed_table.get_run(0, self._handed.rows))
        self._load()

    def _load(self) -> None:
        """Take over weights and state of the present clock."""
        self._read()
        saved = self.job.load_state()
        self._over = self._ending.done()  # so this process only waits for the others
        slots = self.job.spec["slots"]
        if saved is None:
            self._refuse_share(self._share.of == slots > self.job.slot or self.job.ended, slots)
        else:
            kept = _state.decode(saved)
            rank, slots = kept["share"]
            self._refuse_share((rank, slots) == self._share or self.job.ended, slots)
            if len(kept["state"]) != len(self._state):
                raise UsageError(
                    f"this slot has kept the states of {len(kept['state'])} things, and the program now lists "
                    f"{len(self._state)}: the state= and schedulers= of a job stay as they were"
                )
            for of, state in zip(self._state, kept["state"], strict=True):
                load(of, state)
            self._loaders.loaded()
            _set_random(kept["random"])
            self._taken_over = True

    def _hand_out(self) -> None:
        if self._handed is not None:
            values = np.zeros((self._handed.rows, _DIM), np.float32)
            self._handed.put(values)
            self._handed_table.inc_run(0, values)

    def _refuse_changes(self) -> None:
        """Raise UsageError where the model is not the one any more that the job has."""
        self._frozen.check(self._state)
        if self._taken_over:
            self._taken_over = False
            self._counted.warn_taken_over()

    def _states(self) -> list[Any]:
        """Return the states of all objects that are kept."""
        return [state_of(of) for of in self._state]

    def _refuse_share(self, same: bool, slots: int) -> None:
        """Refuse to train other data than so far: some samples would count twice, and others never.

        The clock is ended without work. Otherwise the job could not get past it, also with as many slots as before.
        """
        if same:
            return
        now = self.job.share
        said = (
            f"job.share of slot {self.job.slot} is {now.rank} of {now.of} now, and the data were divided among {slots} "
            f"slots when this training began: other parts would count some samples twice and others never; go back by "
            f"`perdure scale {slots}`, or begin a new job with the exported model"
        )
        warnings.warn(said, RuntimeWarning, stacklevel=2)  # now: the clock may take long
        self._weigh(_NEXT_TO_NOTHING)
        self.job.clock()
        raise UsageError(said)

    def _read(self) -> None:
        for g in self._groups:
            g.read()
        if self._buffers is not None:
            self._buffer_table.get_run(0, self._buffers.rows, out=self._buffer_values)
            self._find_buffers()
            self._buffers.take(self._buffer_values)

    def _send_buffers(self) -> None:
        if self._buffers is not None and self.job.share.rank == 0:
            self._buffers.put(self._buffer_values)
            self._buffer_table.inc_run(0, self._buffer_values)

    def _find_buffers(self) -> None:
        """Find the buffers that the model has now: a module may have assigned another tensor to one."""
        if self._buffers is None:
            return
        now, known = _buffers_of(self.model), self._buffers
        for i, (name, was) in enumerate(zip(self._buffer_names, known.tensors, strict=True)):
            buffer = now.get(name)
            if buffer is not None and (buffer.shape, buffer.dtype) == (was.shape, was.dtype):
                known.tensors[i] = buffer
            elif name in self._persistent:  # others, such as tables of sines, follow from the rest
                raise UsageError(
                    f"the buffer {name} has changed its shape or type, or is gone; buffers keep those that they have "
                    "when DataParallel or DiLoCo is made"
                )

    def _weigh(self, weight: float | None) -> None:
        for g in self._groups:
            if g.table.spec.get("combine") == "weighted":
                g.table.weigh(1.0 if weight is None else weight)

    def _source(self, g: _Group, i: int) -> torch.Tensor | None:
        """What the update of a tensor is made of; None: it has none."""
        raise NotImplementedError

    def _write(self, g: _Group, source: Sequence[torch.Tensor | None], i: int, place: torch.Tensor) -> None:
        """Write the update of a tensor where it is sent from, which is made of the i-th of source."""
        raise NotImplementedError

    def _sources(self) -> list[list[torch.Tensor | None]]:
        """What updates are made of, group by group, in this process's memory and as float32, as they are sent.

        It raises NonFinite where there is NaN or Inf, before anything is sent.
        """
        lie = [[self._source(g, i) for i in range(len(g.rows.tensors))] for g in self._groups]
        for g, of in zip(self._groups, lie, strict=True):
            for name, source in zip(g.rows.names, of, strict=True):
                if source is not None and source.layout != torch.strided:
                    raise UsageError(
                        f"the gradient of {name} is sparse; take sparse=False, or a table of Perdure for it"
                    )
        here = iter(self._pinned.here([source for of in lie for source in of]))
        found = [[next(here) for _ in of] for of in lie]
        for g, of in zip(self._groups, found, strict=True):
            for name, source in zip(g.rows.names, of, strict=True):
                if source is not None and not _is_finite(source):
                    raise NonFinite(f"{name} has NaN or Inf in its update; nothing was sent")
        return found

    def _exchange(self, weight: float | None) -> None:
        """End the clock with an update, and read what has come of it.

        It raises Done at the end of the slot's work, and RolledBack where the job has gone back: neither the program
        nor what ``state`` lists has.
        """
        if self._half:
            raise UsageError("an earlier step was interrupted amid its clock; let this program end, and start it again")
        self._refuse_changes()
        self._find_buffers()
        before = self.job._now()
        if before.ended or self._over:
            self._ending.cut = not self._over
            raise Done("the slot's work has ended: leave the loop")
        self._refuse_share(before.share == self._share, self._share.of)
        sources = self._sources()
        kept = _state.Encoded({"state": (states := self._states()), "random": _random(), "share": list(self._share)})
        self._half = True
        self.job._save(kept)  # a large one is put into the store while updates are handed over
        with torch.no_grad():
            for g, of in zip(self._groups, sources, strict=True):
                g.send([source is not None for source in of], functools.partial(self._write, g, of))
        self._send_buffers()
        self._weigh(weight)
        self.job.clock()
        self._late.saved(states)
        self._half = False
        if self.job._now().generation != before.generation:
            raise RolledBack("the job was rolled back: let this program end, and start it again")
        self._read()

    def finish(self) -> None:
        """End the work of this process's slot, and wait until all have. The model is then that which all have."""
        self._ending.say(self._left())
        self._ending.await_others(lambda: self._weigh(_NEXT_TO_NOTHING))
        self.job._to_end(lambda: self._weigh(_NEXT_TO_NOTHING))
        self._read()
        self.job.finish()
        self._let_go()

    def _let_go(self) -> None:
        """Remove the hooks and functions that PyTorch has for this training."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self: _M) -> _M:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool | None:
        try:
            if kind is None or kind is Done:
                self.finish()
        finally:
            self._let_go()
        return kind is Done


class DataParallel(_Model):
    """Train as DistributedDataParallel does on the same batches: gradients are averaged over the slots, and the rule
    runs once on the servers. Call ``step`` in place of the optimizer's, behind ``backward``.

    job: the job, under bsp. rule: an update rule, or an optimizer of torch.optim that it is made of, group by group.
    state: objects that a process needs that takes the slot over: the loader of data, for example. Step saves them, so
    change them before it.
    end: when the job ends. ``first``: with the first slot that leaves the ``with`` block; other slots report the
    data that they have not trained, in a warning, on the console and in the summary. ``all``: with the last one; a slot
    that is done counts next to nothing in the others' clocks.

    Where the job goes back (under ``checkpoint:C``) step raises RolledBack: let the program end, and be started again.
    Where the slot's work ends it raises Done, with which the ``with`` block ends in order.
    """

    def __init__(
        self,
        job: Job,
        model: nn.Module,
        rule: Rule | Optimizer,
        *,
        state: Iterable[Stateful] = (),
        weighted: bool = False,
        end: str = "first",
    ) -> None:
        self._weighted = weighted
        groups = _groups_of(model, rule)
        self._rules = [rule for _, rule in groups]
        self._optimizer = rule if isinstance(rule, Optimizer) else None
        super().__init__(job, model, groups, "weighted" if weighted or end == "all" else "mean", state, end)
        self._undo.append(_clip.refuse(p for of, _ in groups for _, p in of))
        if self._optimizer is not None:
            self._undo.append(self._optimizer.register_step_pre_hook(_refuse_step).remove)

    def step(self, weight: float | None = None) -> int:
        """Average the gradients, have the rule run, and take the new weights. Returns the clock.

        weight: of a model that was made with ``weighted``: how much this slot's gradient counts, in samples perhaps.
        """
        if self._weighted and weight is None:
            raise UsageError("gradients are weighted: call step(weight=…), with the number of samples for example")
        if not self._weighted and weight is not None:
            raise UsageError(f"step(weight={weight}) is for DataParallel(…, weighted=True)")
        if self._optimizer is not None:
            now = [rule_of(self._optimizer, group) for group in self._optimizer.param_groups]
            if now != self._rules:
                raise UsageError(
                    "the optimizer's settings have changed, and those of the servers do not; for a rate that falls "
                    'give a rule with a schedule, such as perdure.Adam(1e-3, schedule="sqrt")'
                )
        self._refuse_changed()
        self._counted.refuse_second_pass(self._loaders.again())
        self._loaders.check()
        self._exchange(weight)
        self._loaders.stepped()
        return self.job._now().clock

    def _read(self) -> None:
        super()._read()
        self._given = self._versions()

    def _versions(self) -> list[int]:
        return [p._version for g in self._groups for p in g.rows.tensors]

    def _refuse_changed(self) -> None:
        """Raise UsageError where the program has changed a weight: servers do not have the change."""
        if self._given == self._versions():
            return
        for name in (name for g in self._groups for name in g.changed()):
            raise UsageError(
                f"{name} has changed since DataParallel has set it, and the change would be lost, since weights are on "
                "servers: load weights before DataParallel is made, make no step of another optimizer, or train by "
                "DiLoCo"
            )
        self._given = self._versions()  # an evaluation has put averages there, and these back

    def _source(self, g: _Group, i: int) -> torch.Tensor | None:
        return g.rows.tensors[i].grad

    def _write(self, g: _Group, source: Sequence[torch.Tensor | None], i: int, place: torch.Tensor) -> None:
        grad = source[i]
        assert grad is not None
        place.copy_(grad)
        if g.decay:  # all slots have the same weights, so that the mean has their decay once
            place.add_(g.was[i], alpha=g.decay)

    def zero_grad(self) -> None:
        """Forget the gradients, as an optimizer's zero_grad."""
        self.model.zero_grad(set_to_none=True)

    def clip_grad_norm_(self, *_: Any) -> None:
        """Refused, as torch.nn.utils.clip_grad_norm_ is for these parameters: it raises UsageError."""
        raise UsageError(f"clip_grad_norm_ {_clip.SAYS}")

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """For programs that were written for DistributedDataParallel: gradients add up until ``step`` in any case."""
        return contextlib.nullcontext()


class DiLoCo(_Model):
    """Train each slot by itself for ``sync_every`` steps of an inner optimizer, then average what all have come to:
    the outer step, which runs on the servers (Douillard et al., arXiv 2311.08105). The optimizer's step does the rest.

    job: the job, under bsp. inner: the optimizer of this process, of all parameters. Several are a list, in the order
    in which they step: the last one completes a step. outer: the outer rule.
    weights: how much this slot's part counts, asked for at each outer step: a ``Count``, to which the program adds its
    tokens, for example, or any function that returns a number above 0; None: all alike.
    schedulers: of the inner optimizer; they are stepped behind each of its steps, before what they are is saved.
    state, end: as in DataParallel; the optimizer's step saves the state. The inner optimizer's is kept in any case.

    Between outer steps it keeps drafts in the run's folder, at 2% of the time at most, where that is on this machine:
    a process that takes the slot over there does only the steps behind the last draft again. There are none behind an
    ``inc`` of the program's own in the same clock; nor where ``weights`` is without ``state_dict``: what it has counted
    dies with the process, and counting must begin at an outer step. A ``Count`` has it. A folder that cannot be written
    to is said once, as a RuntimeWarning, and training goes on without drafts.
    """

    _keep = True

    def __init__(
        self,
        job: Job,
        model: nn.Module,
        inner: Optimizer | Sequence[Optimizer],
        *,
        sync_every: int = 100,
        outer: Rule | None = None,
        weights: Callable[[], float] | None = None,
        schedulers: Iterable[Any] = (),
        state: Iterable[Stateful] = (),
        end: str = "first",
    ) -> None:
        self._schedulers = list(schedulers)
        refuse_schedulers(self._schedulers)
        if sync_every < 1:
            raise UsageError(f"sync_every is {sync_every}; choose 1 or more steps")
        self.sync_every, self._weights, self._steps = sync_every, weights, 0
        self._backwards, self._begun = 0, False  # of this process; whether a step of the inner optimizer has begun
        self._poisoned = 0  # the first step since the last outer one whose gradient is not finite; 0: none is known
        # These change their weights when they are run.
        self._renormed = {
            plain_name(f"{name}.weight".lstrip("."))
            for name, module in model.named_modules()
            if getattr(module, "max_norm", None) is not None
        }
        self.synced = False  #: whether the outer step followed the inner optimizer's last one
        of, rule, combine = self._settings(model, outer, weights, end)
        self._inner = Inner(inner, model, dict(of))
        kept = [*state, *self._inner.optimizers, *self._schedulers]
        if _is_stateful(weights) and not any(has_state is weights for has_state in kept):
            kept.append(weights)
        self._drafts = self._drafts_of(job, weights)
        super().__init__(job, model, [(of, rule)], combine, kept, end)
        self._counts = True  # False: a trainer counts steps, and calls sync
        weights_now = self._groups[0].rows.tensors
        self._notice = Notice(weights_now, self._buffers_now, self._last_draft) if self._drafts.kept else None
        self._before = [of.register_step_pre_hook(lambda *_: self._step_begins()) for of in self._inner.optimizers]
        self._inner.hook(self._stepped)
        self._undo += [self._inner.unhook, self._unhook_before]

    def _unhook_before(self) -> None:
        for hook in self._before:
            hook.remove()

    def _step_begins(self) -> None:
        self._begun = True
        if self._counts:
            self._counted.refuse_rates(self._inner.optimizers, synced=self._steps == 0, begins=True)
            self._note_poisoned()
        if self._notice is not None:
            self._notice.step()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _note_poisoned(self) -> None:
        """Note the first step with NaN or Inf in its gradient, as far as one value shows that. A look at a GPU's
        gradient would have the program wait.
        """
        grad = self._groups[0].rows.tensors[-1].grad
        if self._poisoned or grad is None or not grad.numel() or not grad.is_cpu or grad.layout != torch.strided:
            return
        if not math.isfinite(float(grad.detach().reshape(-1)[0])):
            self._poisoned = self._steps + 1

    def _stepped(self) -> None:
        self._refuse_changes()
        if not self._counts:
            return
        if self._over:
            raise Done("the slot's work has ended: leave the loop")
        self._counted.refuse_second_pass(self._loaders.again())
        self._loaders.check()
        self._loaders.stepped()
        self._steps += 1
        for scheduler in self._schedulers:
            scheduler.step()
        self._counted.stepped(self._inner.optimizers)
        self.synced = self._steps == self.sync_every
        if self.synced:
            self.sync()
            return
        if self._drafts.due() and not self.job._inced:
            self._draft()
        self._keep_for_notice(lambda: {"state": self._small_states(), "random": _random()})

    def _keep_for_notice(self, make: Callable[[], dict[str, Any]]) -> None:
        """Keep what a draft of the last step has beside weights and optimizers, if that takes little of the time."""
        if self._notice is None:
            return
        if self.job._inced or not self._notice.affords():
            self._notice.drop()
        else:
            self._notice.keep(make)

    def _small_states(self) -> list[dict[str, Any]]:
        """Copies of the states of what ``state`` lists. An optimizer's stays as it is until its next step."""
        return [{} if isinstance(of, Optimizer) else copy.deepcopy(state_of(of)) for of in self._state]

    def _last_draft(self, kept: dict[str, Any], buffers: Sequence[torch.Tensor]) -> None:
        """Write a draft of the last step: this is called by the handler of SIGTERM, so it asks the agent nothing."""
        if self.job._inced:
            return
        state = [
            of.state_dict() if isinstance(of, Optimizer) else was
            for of, was in zip(self._state, kept["state"], strict=True)
        ]
        self._draft(state, kept["random"], [*self._groups[0].rows.tensors, *buffers])

    @staticmethod
    def _settings(
        model: nn.Module, outer: Rule | None, weights: Callable[[], float] | None, end: str
    ) -> tuple[list[tuple[str, nn.Parameter]], Rule, str]:
        """Of the group of parameters: which they are, its rule, and how slots' updates are combined."""
        trained = [(n, p) for n, p in named_parameters(model) if p.requires_grad]
        rule = outer if outer is not None else Nesterov(0.7, 0.9)
        _refuse_rule(rule)
        if rule.decay:
            raise UsageError("the outer rule has decay; give the inner optimizer weight_decay in its place")
        return trained, rule, "mean" if weights is None and end != "all" else "weighted"

    @staticmethod
    def _drafts_of(job: Job, weights: Callable[[], float] | None) -> Drafts:
        """The slot's drafts. None are kept where what was counted dies with the process."""
        return Drafts(job.run_folder if weights is None or _is_stateful(weights) else None, job.slot)

    @staticmethod
    def _drafted(
        job: Job, model: nn.Module, sync_every: int, outer: Rule | None, weights: Callable[[], float] | None, end: str
    ) -> Any:
        """The draft from which ``DiLoCo`` of these would go on, before it is made; None: there is none."""
        draft = DiLoCo._drafts_of(job, weights).read()
        if draft is None or job._now().clock == 0:
            return None
        of, rule, combine = DiLoCo._settings(model, outer, weights, end)
        g = _Group(job, _NAME.format(0), _Rows(job, of), rule, combine, DiLoCo._keep)
        g.begun.get_run(0, g.rows.rows, out=g.first)
        g.fetch()
        return draft if draft["origin"] == _origin(_where(job), sync_every, g) else None

    def _own(self) -> list[torch.Tensor]:
        return [*self._groups[0].rows.tensors, *self._buffers_now()]

    def _buffers_now(self) -> list[torch.Tensor]:
        return [b for b in self.model.buffers() if b.numel()]

    def _draft(
        self,
        state: list[dict[str, Any]] | None = None,
        random: dict[str, Any] | None = None,
        tensors: list[torch.Tensor] | None = None,
    ) -> None:
        """Write a draft of what was there after the step; None: it is there still."""
        self._drafts.write(
            {
                "origin": _origin(self._where, self.sync_every, self._groups[0]),
                "steps": self._steps,
                "tensors": self._own() if tensors is None else tensors,
                "state": (states := self._states() if state is None else state),
                "random": _random() if random is None else random,
            }
        )
        if state is None:
            self._late.saved(states)

    def _load(self) -> None:
        super()._load()
        self._where = _where(self.job)
        draft = self._drafts.read()
        if draft is None or draft["origin"] != _origin(self._where, self.sync_every, self._groups[0]):
            return
        with torch.no_grad():
            for tensor, was in zip(self._own(), draft["tensors"], strict=True):
                tensor.copy_(was)
        for of, state in zip(self._state, draft["state"], strict=True):
            load(of, state)
        _set_random(draft["random"])
        self._taken_over = True
        self._steps = draft["steps"]

    def sync(self) -> int:
        """The outer step: what this slot has gone since the last one, averaged with the others'. Returns the clock."""
        steps, self._steps = self._steps, 0
        poisoned, self._poisoned = self._poisoned, 0
        try:
            self._exchange(None if self._weights is None else self._weights())
        except Done:
            self._ending.unsent = steps
            raise
        except NonFinite as error:
            self._drafts.drop()  # a process that continued from one would fail in the same way
            if poisoned:
                raise NonFinite(
                    f"{error}; the first gradient with NaN or Inf was that of step {poisoned} of the {steps} since the "
                    "last outer step"
                ) from None
            raise
        finally:
            if self._notice is not None:
                self._notice.drop()
        self._where = _where(self.job)
        return self.job._now().clock

    def _source(self, g: _Group, i: int) -> torch.Tensor | None:
        return g.rows.tensors[i].detach()

    def _write(self, g: _Group, source: Sequence[torch.Tensor | None], i: int, place: torch.Tensor) -> None:
        now = source[i]
        assert now is not None
        torch.sub(self._given(g, i), now, out=place)

    @staticmethod
    def _given(g: _Group, i: int) -> torch.Tensor:
        """The values that the learner was given, as float32: a parameter of another type has them rounded."""
        dtype = g.rows.tensors[i].dtype
        return g.was[i] if dtype == torch.float32 else g.was[i].to(dtype).to(torch.float32)

    def _backward(self) -> None:
        super()._backward()
        if self._counts:
            self._counted.refuse_rates(self._inner.optimizers, synced=self._steps == 0, begins=False)
        self._backwards += 1
        if self._backwards in _LOOKS:
            self._refuse_other_steps()

    def _refuse_other_steps(self) -> None:
        """Raise UsageError where weights have changed without a step of the inner optimizer: it would be lost."""
        if self._begun or self._steps:  # in this process, or before the draft that it took
            return
        for name in self._groups[0].changed():
            if name not in self._renormed:
                raise UsageError(
                    f"{name} has changed since DiLoCo was made, and {self._inner.says()}, the inner optimizer, has "
                    "made no step: load weights before DiLoCo is made, and call the step of the optimizer that is "
                    "given as inner; what another one, or one inside backward, does would be lost"
                )

    def finish(self) -> None:
        """As in DataParallel; steps behind the last outer one count, too."""
        self._refuse_other_steps()
        if self._steps and self.job.ended and not self._over:
            self._ending.unsent, self._steps = self._steps, 0
        if self._steps and not self._over:
            with contextlib.suppress(Done):  # another slot may end the job just now
                self.sync()
        super().finish()
        if self._notice is not None:
            self._notice.close()
        self._drafts.forget()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return super().__exit__(kind, error, trace)
        finally:
            if self._notice is not None:
                self._notice.close()


def _refuse_step(*_: Any) -> None:
    raise UsageError("the optimizer of DataParallel runs on servers: call the step of DataParallel in place of its own")


def _refuse_rule(rule: Rule) -> None:
    """Refuse rules that would not do with weights what they do with rows, since rows hold what training has added."""
    if isinstance(rule, (Add, Set, FTRL)):
        raise UsageError(f"perdure.{type(rule).__name__} does not descend along gradients; take SGD, Nesterov or Adam")
    if rule.decay and isinstance(rule, Adam):
        raise UsageError(
            "perdure.Adam has decoupled decay, which is of whole weights, and servers hold what training has added to "
            "them; take torch.optim.Adam(weight_decay=…), whose decay is a part of the gradient"
        )
    if rule.decay and (rule.clip_value or rule.clip_norm):
        raise UsageError("a rule has decay and clips; of weights it can have one of the two")


def _is_finite(values: torch.Tensor) -> bool:
    # A sum is finite only if all values are, and is not always finite if they are; it is read at once.
    return math.isfinite(float(values.sum())) or bool(torch.isfinite(values).all())


def _is_stateful(of: Any) -> TypeGuard[Stateful]:
    return hasattr(of, "state_dict") and hasattr(of, "load_state_dict")


def _where(job: Job) -> str:
    """Clock, and share of the data."""
    return f"{job._now().clock} {job.share}"


def _origin(where: str, sync_every: int, g: _Group) -> str:
    """What steps since the last outer one go on from: clock, share of the data, and weights."""
    assert g.weights is not None
    digest = hashlib.blake2b(g.weights.data, digest_size=16).hexdigest()
    return f"{where} {sync_every} {digest}"


def _refuse_large(state: Sequence[Stateful]) -> None:
    """Refuse optimizers whose states are too large to be kept, before anything is trained.

    What else there is to keep is not asked: a loader begins when it is asked where it is.
    """
    optimizers = [of for of in state if isinstance(of, Optimizer)]
    size = sum(_bytes_of(of) for of in optimizers)
    if size <= _MOST_KEPT:
        return
    count = sum(p.numel() for of in optimizers for group in of.param_groups for p in group["params"])
    names = " and ".join(dict.fromkeys(type(of).__name__ for of in optimizers))
    raise UsageError(
        f"the state of {names}, of {count:,} parameters, comes to {_gib(size)}, and {_gib(_MOST_KEPT)} at most is "
        "kept of a slot: take an optimizer that keeps less, such as SGD with momentum, train fewer parameters, or use "
        "DataParallel, whose optimizer runs on servers"
    )


def _refuse_unreached(job: Job, state: Sequence[Stateful]) -> None:
    """Refuse states that need a store which this machine does not reach, before anything is trained."""
    size = sum(_bytes_of(of) for of in state if isinstance(of, Optimizer))
    if size > job._state_bytes and job._state_why:
        raise UsageError(f"the state of the optimizer comes to {size / 2**20:.1f} MiB: {job._state_why}")


def _refuse_unkept(state: Sequence[Stateful]) -> None:
    """Refuse what cannot be saved, before anything is trained. A loader is not asked: it would begin."""
    for of in state:
        if not is_loader(of) and not getattr(of, "begins_later", False):
            _state.Checked(of.state_dict(), f"the state of {type(of).__name__}")


def _refuse_trained(state: Sequence[Stateful], weights: Sequence[nn.Parameter]) -> None:
    """Refuse modules that have weights of the model: a process would load weights of before the last step."""
    trained = set(weights)
    for of in state:
        if isinstance(of, nn.Module) and any(p in trained for p in of.parameters()):
            raise UsageError(
                f"state={type(of).__name__} has parameters that are trained; servers keep those: list only what else "
                "the program needs"
            )


def _buffers_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Buffers by their names, without empty ones."""
    return {plain_name(n): b for n, b in model.named_buffers() if b.numel()}


def _persistent_of(model: nn.Module) -> set[str]:
    """Names of the buffers that a state_dict of the model has."""
    return {
        plain_name(f"{prefix}.{name}".lstrip("."))
        for prefix, module in model.named_modules()
        for name in module._buffers
        if name not in module._non_persistent_buffers_set
    }


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB".replace(".00", "")


def _bytes_of(optimizer: Optimizer) -> int:
    """How large an optimizer's state will be, as far as it is known: that of others than these is what it is now."""
    held = will = 0
    for group in optimizer.param_groups:
        copies = 0
        if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
            copies = 3 if group["amsgrad"] else 2
        elif isinstance(optimizer, torch.optim.SGD) and group["momentum"]:
            copies = 1
        for p in group["params"]:
            will += copies * p.numel() * p.element_size() if p.requires_grad and not is_lazy(p) else 0
            kept = optimizer.state.get(p, {}).values()
            held += sum(v.numel() * v.element_size() for v in kept if isinstance(v, torch.Tensor))
    return max(held, will)


def _groups_of(model: nn.Module, rule: Rule | Optimizer) -> list[tuple[list[tuple[str, nn.Parameter]], Rule]]:
    """Groups of parameters with the rule of each."""
    named = [(n, p) for n, p in named_parameters(model) if p.requires_grad]
    if isinstance(rule, Rule):
        _refuse_rule(rule)
        return [(named, rule)]
    names = {p: n for n, p in named}
    groups = []
    for group in rule.param_groups:
        unknown = [p for p in group["params"] if p not in names]
        if unknown:
            frozen = [n for n, p in named_parameters(model) if not p.requires_grad and any(p is of for of in unknown)]
            more = f" ({', '.join(frozen)} are frozen)" if frozen else ""
            raise UsageError(
                f"the optimizer has parameters that the model does not train{more}; give it only the others"
            )
        groups.append(([(names.pop(p), p) for p in group["params"]], rule_of(rule, group)))
    if names:
        raise UsageError(f"the optimizer lacks {', '.join(sorted(names.values()))}")
    return groups


def rule_of(optimizer: Optimizer, group: dict[str, Any]) -> Rule:
    """The update rule that does what an optimizer of torch.optim does with a group of its parameters.

    It raises UsageError, which names the setting, where there is none.
    """
    kind, rate, decay = type(optimizer), float(group["lr"]), group.get("weight_decay", 0.0)
    refused = [name for name in ("amsgrad", "maximize", "lr_decay", "dampening") if group.get(name)]
    if decay and (kind is torch.optim.AdamW or group.get("decoupled_weight_decay")):
        refused.append(f"weight_decay of {kind.__name__} (decoupled, so of whole weights; Adam's is in the gradient)")
    if kind is torch.optim.Adagrad and group.get("initial_accumulator_value"):
        refused.append("initial_accumulator_value")
    if refused:
        raise UsageError(
            f"{kind.__name__}: servers have no {', '.join(refused)}; leave it out, or take another optimizer"
        )
    if kind is torch.optim.SGD:
        momentum = group["momentum"]
        if not momentum:
            return SGD(rate, decay=decay)
        return (Nesterov if group["nesterov"] else Momentum)(rate, momentum, decay=decay)
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        first, second = group["betas"]
        return Adam(rate, float(first), float(second), group["eps"], decay=decay)
    if kind is torch.optim.Adagrad:
        return Adagrad(rate, group["eps"], decay=decay)
    raise UsageError(f"{kind.__name__}: servers do not know it; take SGD, Adam or Adagrad, or a rule of perdure")


def _random() -> dict[str, Any]:
    """The states of random numbers."""
    bits, keys, at, has, cached = np.random.get_state(legacy=True)
    kept: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [str(bits), keys, at, has, cached],
    }
    return kept | {name: device.get_rng_state_all() for name, device in _devices().items()}


def _set_random(kept: dict[str, Any]) -> None:
    torch.set_rng_state(kept["torch"])
    random.setstate(kept["python"])
    np.random.set_state(tuple(kept["numpy"]))
    here = _devices()
    for name in kept.keys() & {"cuda", "xpu"}:
        states = kept[name]
        count = min(len(states), len(here[name].get_rng_state_all()) if name in here else 0)
        if count:
            here[name].set_rng_state_all(states[:count])
        if count < len(states):
            warnings.warn(
                f"random states of {name} devices {count} to {len(states) - 1} are not taken over, since this machine "
                f"has {count or 'none'}: training continues with other random numbers there",
                RuntimeWarning,
                stacklevel=2,
            )


def _devices() -> dict[str, Any]:
    """The modules of torch that have random states of devices of this machine."""
    of = {name: getattr(torch, name, None) for name in ("cuda", "xpu")}
    return {name: module for name, module in of.items() if module is not None and module.is_available()}
