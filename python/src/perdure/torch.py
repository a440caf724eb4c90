"""PyTorch on Perdure: data parallelism and DiLoCo, in which any worker or server may be killed.

Each group of parameters has a table of rows of 1,024 values, and each parameter starts a new row. The table holds the
sum of all changes that training has made to the initial weights. Another table holds the initial weights, which slot 0
writes in clock 0. Buffers, such as the running means of BatchNorm, are those of slot 0.

With each update a slot saves the states of the objects in ``state`` and of the random number generators. A replacement
process starts with the weights and states of the slot's last applied update.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import os
import random
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeGuard, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from . import _grads, _state
from ._async import (
    Begun,
    averaged,
    is_async,
    refuse_async,
    refuse_sync_batch_norm,
    scaled,
    warn_momentum,
)
from ._counted import Counted
from ._draft import Drafts, Stored
from ._ending import Ending, Left, check_end
from ._epochs import Epochs
from ._frozen import Frozen, named_parameters, plain_name, refuse_group, refuse_without_values
from ._inner import Inner, load, refuse_schedulers
from ._island import refuse_other_ranks
from ._late import Late, is_loader, state_of
from ._loaders import Loaders, is_of
from ._local import local
from ._names import Description, Place, decoded
from ._notice import Notice
from ._overlap import Exchange, Window, blocks, checked, compression
from ._pinned import Pinned
from ._prepared import unwrapped
from ._rates import Rates
from ._seen import look_around, refuse_misplaced
from .errors import Done, NonFinite, PerdureError, Refused, RolledBack, UsageError
from .job import Floats, Job, Saved, Table, _Now
from .rules import FTRL, SGD, Adagrad, Adam, Add, Momentum, Nesterov, Rule, Set

_DIM = 1024  # values per row
_PIECE = 1 << 13  # rows that are rounded together: 32 MiB, or one larger tensor
_NAME = "weights.{}"  # name of a group's table
_MEANS = "buffers.mean"  # name of the table of averaged buffers
_HELD = (torch.float32, torch.float16, torch.bfloat16)  # types that float32 represents exactly
#: Numbers of backward passes, without a step of DiLoCo's inner optimizer, at which the weights are compared. The second
#: pass is not among them, since some programs run the model with other weights within a step.
_LOOKS = (1, 16)
_NEXT_TO_NOTHING = 1e-9  # the weight of a slot that does no work in a clock; servers reject 0


class Stateful(Protocol):
    """An object whose state can be saved: a StatefulDataLoader, a sampler, an optimizer."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the object needs to continue."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Continue from a saved state."""


class Count:
    """Counts the weight of this slot's part of an outer step, for example in tokens, as ``weights`` of ``DiLoCo``.

    Add each batch before the optimizer's step on it, so that a draft after that step includes the batch.

    Example:
        >>> tokens = perdure.Count()
        >>> perdure.DiLoCo(job, model, inner, weights=tokens)
        >>> tokens.add(batch.numel())
        >>> inner.step()
    """

    def __init__(self) -> None:
        self._counted = 0.0

    def add(self, n: float) -> None:
        """Add to the count.

        Args:
            n: A number that is not negative, or a tensor with one such value.

        Raises:
            UsageError: The number is negative, infinite or NaN.
        """
        n = float(n)
        if not 0 <= n < math.inf:
            raise UsageError(f"invalid count {n}: add only finite numbers ≥ 0")
        self._counted += n

    def __call__(self) -> float:
        """Return the count and reset it to 0. A count of 0 returns a weight near 0 and issues a RuntimeWarning."""
        if not self._counted:
            warnings.warn(
                "nothing was counted since the last outer step, so this slot's update has almost no weight; call add "
                "before the optimizer's step",
                RuntimeWarning,
                stacklevel=2,
            )
            return _NEXT_TO_NOTHING
        counted, self._counted = self._counted, 0.0
        return counted

    def state_dict(self) -> dict[str, Any]:
        """Return the count as a state."""
        return {"counted": self._counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the count of a saved state."""
        self._counted = state["counted"]


class _Rows:
    """The layout of parameters in rows of float32, shared by all tables of a group. Each parameter starts a new row."""

    def __init__(
        self, job: Job, tensors: Sequence[tuple[str, torch.Tensor]], places: Sequence[torch.Tensor] | None = None
    ) -> None:
        """Lay out tensors. places: where their values are, if not in themselves."""
        for name, tensor in tensors:
            if tensor.dtype not in _HELD:
                raise UsageError(
                    f"{name} has type {tensor.dtype}, which float32 on the servers cannot represent; call "
                    "model.float(), or freeze it with requires_grad_(False)"
                )
        self.names = [name for name, _ in tensors]
        self.params = [tensor for _, tensor in tensors]
        self.tensors = self.params if places is None else list(places)
        self.starts = np.cumsum([0] + [-(-t.numel() // _DIM) for t in self.tensors]).tolist()
        self.rows = max(self.starts[-1], job.spec["shards"])  # a table needs at least one row per shard

    def views(self, values: Floats) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield each tensor and the part of values, of shape (rows, 1024), that holds it."""
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
    """Tensors of any type in rows. Each float32 value holds two bytes, so every tensor is restored exactly."""

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

    def take(self, values: Floats, larger: bool = False) -> None:
        """Write values into the tensors. larger: keep integers that are larger than these."""
        with torch.no_grad():
            for tensor, value in zip(self.tensors, decoded(values, self.tensors, self.starts), strict=True):
                if larger and not (tensor.is_floating_point() or tensor.is_complex()):
                    value = torch.maximum(tensor.cpu(), value)
                tensor.copy_(value)


class _Group:
    """A group of parameters with one rule.

    Args:
        job: The job.
        name: The name of the group's table.
        rows: The layout of the parameters.
        rule: The update rule.
        combine: How servers combine the slots' updates.
        keep: Whether computing an update needs the weights at the start of the clock.
        compress: As in ``DiLoCo``.
        compress_weights: As in ``DiLoCo``.
    """

    def __init__(
        self,
        job: Job,
        name: str,
        rows: _Rows,
        rule: Rule,
        combine: str,
        keep: bool,
        compress: str | None = None,
        compress_weights: str | None = None,
    ) -> None:
        self.rows = rows
        self._job, self.compress, self._compress_weights = job, compress, compress_weights
        self.residual: Floats | None = None  # what rounding has omitted of all updates so far; None: not sent later
        if compress == "2bit":
            self.residual = np.zeros((rows.rows, _DIM), np.float32)
        self._piece: Floats | None = None  # memory for a part of an update that is rounded
        self.factor = 1.0  # of the gradients: the present rate, divided by that of the rule
        self.decay = rule.decay
        if rule.decay:  # ServerOptimizer._write applies decay to the weights; the rows hold only their changes
            rule = type(rule)(**{k: v for k, v in vars(rule).items() if k != "decay"})
        self.begun = job.table(f"{name}.begin", rows.rows, dim=_DIM, rule=Set())
        encoding: dict[str, Any] = {} if compress is None else {"encoding": compress}
        self.table = job.table(name, rows.rows, dim=_DIM, rule=rule, combine=combine, **encoding)
        shape = (rows.rows, _DIM)
        self.first, self.added = job.empty(shape), job.empty(shape)
        self.first[...] = 0
        self.firsts = [place for _, place in rows.views(self.first)]
        self.weights: Floats | None = None  # at the current clock, if the next update needs them
        if self.decay or keep:
            self.weights = self.added  # fetch adds the initial weights in place
            self.was = [place for _, place in rows.views(self.weights)]

    def send(self, touched: Sequence[bool], write: Callable[[int, torch.Tensor], None]) -> None:
        """Write this clock's update, tensor by tensor, into the memory from which it is sent.

        Args:
            touched: Whether each tensor has an update. The rule does not run on rows of the others.
            write: Receives a tensor's number and the memory for its update.
        """
        starts, at = self.rows.starts, 0
        while at < len(touched):
            end = at
            while end < len(touched) and touched[end]:  # adjacent tensors share one array
                end += 1
            if starts[end] > starts[at]:
                values = self.table.deltas(starts[at], starts[end] - starts[at])
                flat = torch.from_numpy(values.reshape(-1))
                for i in range(at, end):
                    tensor, first = self.rows.tensors[i], (starts[i] - starts[at]) * _DIM
                    write(i, flat[first : first + tensor.numel()].view(tensor.shape))
                    flat[first + tensor.numel() : (starts[i + 1] - starts[at]) * _DIM] = 0
            at = end + 1

    def send_rounded(self, write: Callable[[int, torch.Tensor], None]) -> None:
        """Send the update of all tensors rounded, in pieces of some tensors, so that little memory is needed.

        Args:
            write: As for ``send``.
        """
        starts, at, last = self.rows.starts, 0, len(self.rows.tensors)
        while at < last:
            end = at + 1
            while end < last and starts[end + 1] - starts[at] <= _PIECE:
                end += 1
            if count := starts[end] - starts[at]:
                piece = self._room(count)
                flat = torch.from_numpy(piece.reshape(-1))
                for i in range(at, end):
                    tensor, first = self.rows.tensors[i], (starts[i] - starts[at]) * _DIM
                    write(i, flat[first : first + tensor.numel()].view(tensor.shape))
                    flat[first + tensor.numel() : (starts[i + 1] - starts[at]) * _DIM] = 0
                if self.residual is not None:
                    residual = self.residual[starts[at] : starts[end]]
                    np.add(piece, residual, out=piece)
                    residual[...] = piece
                    self.table._round(piece)
                    np.subtract(residual, piece, out=residual)
                self.table.inc_run(starts[at], piece)
                self.table.flush()
            at = end

    def _room(self, count: int) -> Floats:
        if self._piece is None:
            starts = self.rows.starts
            largest = max(end - start for start, end in itertools.pairwise(starts))
            self._piece = self._job.empty((max(largest, min(_PIECE, starts[-1])), _DIM))
        return self._piece[:count]

    def changed(self) -> Iterator[str]:
        """Yield the names of the parameters that the program has changed since the last read."""
        for (name, shared), tensor in zip(self.shared(), self.rows.tensors, strict=True):
            if not torch.equal(tensor.detach().cpu(), shared):
                yield name

    def shared(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the names and shared weights, as of the last read, of all parameters."""
        for i, (tensor, added) in enumerate(self.rows.views(self.added)):
            weights = added if self.weights is not None else self.firsts[i] + added
            yield self.rows.names[i], weights.to(tensor.dtype)

    def exact(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the names and shared weights, which the servers do not round."""
        if self._compress_weights is None:
            yield from self.shared()
            return
        added = self.table.get_run(0, self.rows.rows)
        np.add(self.first, added, out=added)
        for name, (tensor, weights) in zip(self.rows.names, self.rows.views(added), strict=True):
            yield name, weights.to(tensor.dtype)

    def read_exactly(self) -> None:
        """Let the servers round no weights from now on."""
        self._compress_weights = None

    def fetch(self) -> None:
        """Read the sum of changes. If the next update needs the weights, turn the sum into them."""
        self.table._get_run_as(self._compress_weights, 0, self.rows.rows, self.added)
        if self.weights is not None:
            np.add(self.first, self.weights, out=self.weights)

    def take(self) -> None:
        """Set the parameters to the values that have been fetched."""
        if self.weights is not None:
            self.rows.take(self.weights)
            return
        with torch.no_grad():
            for (tensor, added), (_, first) in zip(
                self.rows.views(self.added), self.rows.views(self.first), strict=True
            ):
                if tensor.dtype == torch.float32 and tensor.device.type == "cpu":
                    torch.add(first, added, out=tensor)  # saves an intermediate copy
                else:
                    tensor.copy_(first + added)


_T = TypeVar("_T", bound="_Training")


class _Training:
    """A training as a context manager: normal exit, and Done, finish the slot's work."""

    _undo: list[Callable[[], None]]  # functions that remove the hooks
    _in_block = False  # used as a context manager
    _finished = False  # finish has been called

    def finish(self) -> None:
        """End this slot's work and wait for all slots."""
        raise NotImplementedError

    def _let_go(self) -> None:
        """Remove the hooks that this training has installed in PyTorch."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self: _T) -> _T:
        self._in_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool | None:
        try:
            if (kind is None or kind is Done) and not self._finished:
                self.finish()
        finally:
            self._let_go()
        return kind is Done


class _Model(_Training):
    """The common base of ServerOptimizer and DiLoCo."""

    _keep = False  # whether computing an update needs the weights at the start of the clock
    _compress: str | None = None  # as in DiLoCo
    _compress_weights: str | None = None  # as in DiLoCo
    _fixed_slots = False  # whether the number of slots cannot change, even with a Sampler
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
        if job._trained:
            raise UsageError("this job already has a ServerOptimizer or DiLoCo; start another job for a second model")
        self._refuse_group(job, model)
        check_end(end)
        self.job, self.model = job, model
        self._begun_everywhere = Begun(job) if is_async(job) else None
        self._sampler = job._sampler
        self._state = [unwrapped(of) for of in state]
        _refuse_stateless(self._state, "state=")
        if self._sampler is not None and end == "all":
            raise UsageError("omit end='all': with a Sampler all slots train the same number of batches")
        self._state = [of for of in self._state if not is_of(job, of)]
        self._state.append(job._epochs if self._sampler is None else self._sampler)
        self._share = job.share
        self._idle = False  # whether the slot has no samples in the clock
        self._loaders = Loaders(self._state, self._sampler, job)
        self._left: Callable[[], Left | None] = self._loaders.left
        refuse_without_values(model)
        trained = [p for of, _ in groups for _, p in of]
        sent = [*trained, *model.buffers()] if self._fixed_slots else []  # an overlap saves them, too
        _refuse_unreached(job, self._state, [*sent, *(trained if self._compress == "2bit" else ())])
        _refuse_unkept(self._state)
        _refuse_trained(self._state, [p for of, _ in groups for _, p in of])
        _separate_generators(self._state, job._stream)
        rows = [(_Rows(job, of, self._mirrored(job, of)), rule) for of, rule in groups]
        buffers = _buffers_of(model)
        self._persistent = _persistent_of(model)
        means = averaged(buffers, _HELD) if is_async(job) else {}
        mean_rows = _Rows(job, list(means.items())) if means else None
        buffers = {name: buffer for name, buffer in buffers.items() if name not in means}
        self._buffers = _Bytes(job, list(buffers.values())) if buffers else None
        self._buffer_names = list(buffers)
        self._frozen = Frozen(model)
        self._handed = _Bytes(job, self._frozen.handed) if self._frozen.handed else None
        named = [of for group, _ in groups for of in group]
        places = self._places([of for of, _ in rows], buffers, mean_rows)
        self._names = Description(job, model, places, self._shared_settings())
        self._means: _Group | None = None  # the buffers that are averaged over the slots
        self._ending = Ending(job, end)
        self._groups: list[_Group] = []
        self._create_tables(rows, combine, mean_rows)
        self._pinned = Pinned()
        self._finishing = False  # whether the next read is that of the job's final model
        self._half = False  # whether a step was interrupted before its clock ended
        self._taken_over = False  # whether this process replaced another one and has not made a step since
        self._trained = [p for _, p in named]
        self._late = Late(self._state, self._trained)
        self._counted = Counted(job, self._state, self._schedulers, (Count, Epochs))
        self._undo: list[Callable[[], None]] = []  # functions that remove what finish must undo
        if self._sampler is not None:
            self._sampler._unread()
        self._begin()
        self._frozen.begin()
        if named:
            # A backward pass computes the last parameter's gradient first, so this hook runs early in each step.
            backward = weakref.WeakMethod(self._backward)  # a strong reference in the hook would keep the model alive
            hook = named[-1][1].register_post_accumulate_grad_hook(lambda _: (call := backward()) and call())
            self._undo.append(hook.remove)
        if self._sampler is not None:
            self._sampler._owner = weakref.ref(self)
        job._trained = True

    def _refuse_group(self, job: Job, model: nn.Module) -> None:
        """Raise UsageError for a model that is spread over processes in a way that this class does not support."""
        refuse_group(model, job, type(self).__name__)

    def _mirrored(self, job: Job, of: Sequence[tuple[str, nn.Parameter]]) -> list[torch.Tensor] | None:
        """Return the tensors that hold the parameters' values in an outer step. None: the parameters themselves."""
        return None

    def _create_tables(self, rows: Sequence[tuple[_Rows, Rule]], combine: str, means: _Rows | None) -> None:
        job = self.job
        try:
            self._groups = [
                _Group(job, _NAME.format(i), of, rule, combine, self._keep, self._compress, self._compress_weights)
                for i, (of, rule) in enumerate(rows)
            ]
            if means is not None:
                self._means = _Group(job, _MEANS, means, Add(), "each", keep=True)
            if self._buffers is not None:
                self._buffer_table: Table = job.table("buffers", self._buffers.rows, dim=_DIM, rule=Set())
            if self._handed is not None:
                self._handed_table: Table = job.table("frozen", self._handed.rows, dim=_DIM, rule=Set())
        except (UsageError, Refused) as error:
            self._names.check()  # names the first difference, unless the job is in its first clock
            raise UsageError(
                f"another slot started with a model of a different size or with a different rule ({error}); all slots "
                "must use the same model and rule for the whole job"
            ) from None
        if self._buffers is not None:
            self._buffer_values = job.empty((self._buffers.rows, _DIM))
            self._buffer_values[...] = 0

    def _backward(self) -> None:
        self._late.compare()

    def _shared_settings(self) -> dict[str, Any]:
        """Return the settings that must be equal in all slots, besides the model and the rule."""
        return {}

    def _places(
        self, groups: Sequence[_Rows], buffers: dict[str, torch.Tensor], means: _Rows | None
    ) -> Iterator[Place]:
        """Yield all parameters and buffers with their places in the tables."""
        for i, of in enumerate(groups):
            for name, tensor, start in zip(of.names, of.params, of.starts, strict=False):
                yield Place(name, tensor, "trained", _NAME.format(i), start * _DIM)
        starts = iter(self._buffers.starts if self._buffers is not None else ())
        for (name, tensor), start in zip(buffers.items(), starts, strict=False):
            yield Place(name, tensor, "buffer", "buffers", start)
        if means is not None:
            for name, tensor, start in zip(means.names, means.tensors, means.starts, strict=False):
                yield Place(name, tensor, "buffer", _MEANS, start * _DIM)
        yield from _frozen_places(self._frozen, self._handed)

    def export(self, path: str | os.PathLike[str], *, partial: bool = False) -> None:
        """Write the job's model in the safetensors format, with the tensors of the model's state_dict.

        Any slot may call it, during training or after the end. It writes the weights that this process has last read
        from the servers, so that all slots write the same tensors in the same clock. The file is complete or absent.
        ``perdure export RUN`` writes the same tensors. Needs the package safetensors.

        Args:
            path: The file. An existing one is replaced.
            partial: Whether to omit tensors that cannot be written.

        Raises:
            UsageError: The state_dict has values that are not in the job, such as extra state, or safetensors is not
                installed.

        Example:
            >>> training.export("model.safetensors")
            >>> model.load_state_dict(safetensors.torch.load_file("model.safetensors"))
        """
        self._await_weights()
        values: dict[str, torch.Tensor | None] = {}
        for g in self._groups:
            values.update(g.exact())
        if self._buffers is not None:
            of = decoded(self._buffer_values, self._buffers.tensors, self._buffers.starts)
            values.update(zip(self._buffer_names, of, strict=True))
        if self._means is not None:
            values.update(self._means.shared())
        values.update(self._frozen.values())
        self._names.export(path, values, partial, self.job.version)

    def _await_weights(self) -> None:
        """Wait for shared weights that are about to arrive."""

    def _begin(self) -> None:
        """Write the initial weights in clock 0, or read the current ones, and continue from the slot's last update."""
        while self.job._now().clock == 0:  # repeated if the job was rolled back meanwhile
            if self.job.share.rank == 0:
                self._names.put()
                for g in self._all_groups():
                    # The agent gives this memory back. A copy on its heap would remain there for minutes.
                    values = g.begun.deltas()
                    values[...] = 0  # also rows and ends of rows without a parameter
                    g.rows.put(values)
                self._send_buffers()
                self._hand_out()
                if self._begun_everywhere is not None:
                    self._begun_everywhere.put()
            self._weigh(1.0)
            self.job.clock()
        if self._begun_everywhere is not None:  # other slots' reads do not wait for slot 0's first clock
            self._begun_everywhere.wait(self._all_tables())
        self._names.check()
        for g in self._all_groups():
            g.begun.get_run(0, g.rows.rows, out=g.first)
        if self._handed is not None:
            self._handed.take(self._handed_table.get_run(0, self._handed.rows))
        self._load()

    def _all_groups(self) -> list[_Group]:
        """Return the groups of parameters, and that of the averaged buffers."""
        return [*self._groups, *([] if self._means is None else [self._means])]

    def _all_tables(self) -> Iterator[Table]:
        """Yield the tables that have parts of the model."""
        yield self._names.table
        for g in self._all_groups():
            yield from (g.begun, g.table)
        if self._buffers is not None:
            yield self._buffer_table
        if self._handed is not None:
            yield self._handed_table

    def _load(self) -> None:
        """Load the weights and the slot state of the current clock."""
        self._read()
        self._over = self._ending.done()  # if so, this process only waits for the others
        slots = self.job.spec["slots"]
        kept, saved = self._saved()
        if kept is None:
            self._refuse_share(self._share.of == slots > self.job.slot or self.job._now().ended, slots)
        else:
            rank, slots = kept["share"]
            self._refuse_share((rank, slots) == self._share or self.job._now().ended, slots)
            if len(kept["state"]) != len(self._state):
                raise UsageError(
                    f"this slot saved the states of {len(kept['state']) - 1} objects, but the program now lists "
                    f"{len(self._state) - 1}: pass the same state= and schedulers= for the whole job"
                )
            for of, state in zip(self._state, kept["state"], strict=True):
                load(of, state)
            self._loaders.loaded()
            _set_random(kept["random"])
            self._restore(kept)
            self._taken_over = True
        if self._sampler is not None:
            self._sampler._resume(loaded=kept is not None)
        # Clocks without work, and the loss of updates, leave a state of an earlier clock.
        self._resume_window(kept if kept is not None and saved.clock + 1 == self.job._now().clock else None)

    def _restore(self, kept: dict[str, Any]) -> None:
        """Restore what else is in the slot's saved state."""

    def _resume_window(self, kept: dict[str, Any] | None) -> None:
        """Continue from the state that this slot has saved with the last clock. None: it has saved none."""

    def _saved(self) -> tuple[Any, Saved]:
        """Return the slot's saved state. It is None if this is the first process of the slot since it joined."""
        kept, saved = self.job._load()
        refuse_other_ranks(self.job._island, kept)
        if kept is not None and self._sampler is not None and self._sampler._is_former(kept["state"][-1], saved):
            return None, saved
        return kept, saved

    def _hand_out(self) -> None:
        if self._handed is not None:
            values = np.zeros((self._handed.rows, _DIM), np.float32)
            self._handed.put(values)
            self._handed_table.inc_run(0, values)

    def _refuse_changes(self) -> None:
        """Raise UsageError if the model has changed in a way that the job does not know of."""
        self._frozen.check(self._state)
        if self._taken_over:
            self._taken_over = False
            self._counted.warn_taken_over()

    def _states(self) -> list[Any]:
        """Return the states of all objects in ``state``."""
        return [state_of(of) for of in self._state]

    def _refuse_share(self, same: bool, slots: int) -> None:
        """Raise UsageError if the slot's share of the data has changed: samples would be counted twice or skipped.

        A Sampler divides the data again in each clock, so jobs with one are exempt. The method first ends the clock
        without work. Otherwise the job could not pass it, even with as many slots as before.
        """
        if same or (self._sampler is not None and not self._fixed_slots):
            return
        now = self.job.share
        said = (
            f"job.share of slot {self.job.slot} is now {now.rank} of {now.of}, but the data were divided among {slots} "
            f"slots when this training started; with other shares some samples would be counted twice and others "
            f"skipped: run `perdure scale {slots}`, or start a new job with the exported model; programs with a "
            "perdure.Sampler, and without overlap, can change the number of slots"
        )
        self.job._warn(said, stacklevel=2)  # before the clock, which may take long
        if self._sampler is not None:
            self._sampler._rewind()
        self._weigh(_NEXT_TO_NOTHING)
        self.job.clock()
        raise UsageError(said)

    def _read(self) -> None:
        for g in self._all_groups():
            g.fetch()
        if self._buffers is not None:
            self._buffer_table.get_run(0, self._buffers.rows, out=self._buffer_values)
        self._find_buffers()
        with self._changing():
            for g in self._all_groups():
                g.take()
            if self._buffers is not None:
                self._buffers.take(self._buffer_values, larger=is_async(self.job) and not self._finishing)

    def _changing(self) -> contextlib.AbstractContextManager[None]:
        """Wrap a change of the weights that is not an optimizer's step."""
        return contextlib.nullcontext()

    def _send_buffers(self) -> None:
        if self._buffers is not None and self.job.share.rank == 0:
            self._buffers.put(self._buffer_values)
            self._buffer_table.inc_run(0, self._buffer_values)

    def _send_means(self) -> None:
        """Send this slot's change of each averaged buffer, divided by the number of slots."""
        if (g := self._means) is None:
            return
        tensors = [t.detach().cpu() for t in g.rows.tensors]
        changed = [not torch.equal(t, was.to(t.dtype)) for t, was in zip(tensors, g.was, strict=True)]
        for name, tensor, sent in zip(g.rows.names, tensors, changed, strict=True):
            if sent and not _is_finite(tensor):
                raise NonFinite(f"the buffer {name} contains NaN or Inf, so it cannot be averaged over the slots")

        def write(i: int, place: torch.Tensor) -> None:
            torch.sub(tensors[i].to(torch.float32), g.was[i], out=place)
            place.div_(self.job.spec["slots"])

        g.send(changed, write)

    def _find_buffers(self) -> None:
        """Find the model's current buffers: a module may have assigned a new tensor to one."""
        if self._buffers is not None:
            self._find(self._buffer_names, self._buffers.tensors)
        if self._means is not None:
            self._find(self._means.rows.names, self._means.rows.tensors)

    def _find(self, names: Sequence[str], known: list[torch.Tensor]) -> None:
        now = _buffers_of(self.model)
        for i, (name, was) in enumerate(zip(names, known, strict=True)):
            buffer = now.get(name)
            if buffer is not None and (buffer.shape, buffer.dtype) == (was.shape, was.dtype):
                known[i] = buffer
            elif name in self._persistent:  # non-persistent ones, such as tables of sines, can be recomputed
                raise UsageError(
                    f"the buffer {name} has changed its shape or type, or was removed; buffers must keep the shape and "
                    "type that they have when ServerOptimizer or DiLoCo is created"
                )

    def _weigh(self, weight: float | None) -> None:
        if weight is None:  # by samples, if a Sampler counts them: shares may differ at the end of an epoch
            weight = 1.0 if self._sampler is None else self._sampler._place.samples or _NEXT_TO_NOTHING
        for g in self._groups:
            if g.table.spec.get("combine") == "weighted":
                g.table.weigh(weight)

    def _source(self, g: _Group, i: int) -> torch.Tensor | None:
        """Return the tensor from which the update of tensor i is computed, or None if it has no update."""
        raise NotImplementedError

    def _write(self, g: _Group, source: Sequence[torch.Tensor | None], i: int, place: torch.Tensor) -> None:
        """Write the update of tensor i, computed from ``source[i]``, into the memory from which it is sent."""
        raise NotImplementedError

    def _sources(self) -> list[list[torch.Tensor | None]]:
        """Return the sources of all updates by group, as float32 tensors in this process's memory.

        Raises:
            NonFinite: A source contains NaN or Inf. Nothing has been sent yet.
            UsageError: A gradient is sparse.
        """
        lie = [[self._source(g, i) for i in range(len(g.rows.tensors))] for g in self._groups]
        for g, of in zip(self._groups, lie, strict=True):
            for name, source in zip(g.rows.names, of, strict=True):
                if source is not None and source.layout != torch.strided:
                    raise UsageError(
                        f"the gradient of {name} is sparse; use sparse=False, or keep it in a Perdure table"
                    )
        here = iter(self._pinned.here([source for of in lie for source in of]))
        found = [[next(here) for _ in of] for of in lie]
        for g, of in zip(self._groups, found, strict=True):
            for name, source in zip(g.rows.names, of, strict=True):
                if source is not None and not _is_finite(source):
                    raise NonFinite(
                        f"the update of {name} contains NaN or Inf; nothing was sent: check the loss and learning rate"
                    )
        return found

    def _exchange(self, weight: float | None) -> None:
        """End the clock with this slot's update, and read the resulting weights.

        Raises:
            Done: The slot's work has ended.
            RolledBack: The job was rolled back, but the program and the objects in ``state`` were not.
        """
        before, sources = self._check_step()
        states = self._states()
        contents, late = self._kept(states), self._groups[0].residual if self._groups else None
        kept = _state.Encoded(contents, late=late)
        self._half = True
        if late is not None:
            self._hand_over(sources, weight)  # changes the residual, which the state contains
        self.job._save(kept)  # a large state is written to the store while the updates are handed over
        if late is None:
            self._hand_over(sources, weight)
        self.job.clock()
        self._late.saved(states)
        self._half = False
        if self.job._now().generation != before.generation:
            raise RolledBack("the job was rolled back; exit, and start this program again")
        self._read()

    def _check_step(self) -> tuple[_Now, list[list[torch.Tensor | None]]]:
        """Check that the clock can end with an update. Return the clock, and the sources of the update."""
        self._refuse_half()
        self._refuse_changes()
        self._find_buffers()
        before = self.job._now()
        if before.ended or self._over:
            raise self._done()
        self._refuse_share(before.share == self._share, self._share.of)
        if self._sampler is not None:
            self._sampler._check_share(before.share)
        return before, self._sources()

    def _refuse_half(self) -> None:
        if self._half:
            raise UsageError("a step was interrupted before its clock ended; exit, and start this program again")

    def _kept(self, states: list[Any]) -> dict[str, Any]:
        """Return the state that a replacement process needs."""
        return {"state": states, "random": _random(), "share": list(self._share)}

    def _hand_over(self, sources: list[list[torch.Tensor | None]], weight: float | None) -> None:
        """Write the clock's update into the memory from which it is sent."""
        with torch.no_grad():
            for g, of in zip(self._groups, sources, strict=True):
                if g.compress is None:
                    g.send([source is not None for source in of], functools.partial(self._write, g, of))
                else:
                    g.send_rounded(functools.partial(self._write, g, of))
            self._send_means()
        self._send_buffers()
        self._weigh(weight)

    def _done(self) -> Done:
        """Note that the slot's work has ended before its loop, and return the exception that ends the loop."""
        # A slot that leaves the job by plan leaves no samples untrained: a Sampler gives them to the others.
        leaves = self._sampler is not None and self._sampler._leaves()
        self._ending.cut = not self._over and not leaves and not self.job._ended_itself
        return Done("the slot's work has ended; leave the training loop")

    def _step_without_samples(self) -> None:
        """Make the step of a batch in which this slot has no samples. The Sampler calls it."""
        raise NotImplementedError

    def finish(self) -> None:
        """End this slot's work and wait for all slots. Then the model has the job's final weights."""
        self._finish_slot()
        self._finished = True
        self._let_go()

    def _finish_slot(self) -> None:
        self._ending.say(self._left())
        self._ending.await_others(lambda: self._weigh(_NEXT_TO_NOTHING))
        self.job._to_end(lambda: self._weigh(_NEXT_TO_NOTHING))
        for g in self._groups:
            g.read_exactly()
        self._finishing = True
        self._read()
        self.job.finish()


class ServerOptimizer(_Model):
    """Trains like DistributedDataParallel, with the optimizer on the servers.

    Under ``bsp``, gradients are averaged over the slots at each step, and the servers apply the update rule once. Under
    ``asp``, ``ssp:S`` and ``essp:S`` they apply it to the gradient of each slot when that arrives, and no slot waits
    for another. Call ``step`` after ``backward``, instead of the optimizer's step. Use the object as a context manager:
    it calls ``finish`` on normal exit, and also when ``step`` raises Done.

    Args:
        job: The job. Models other than ``bsp`` need ``--atomic-clocks``.
        model: The model. All slots must use the same one.
        rule: An update rule, or an optimizer of torch.optim that is converted to one rule per parameter group.
        state: Objects that a replacement process needs, such as the data loader. ``step`` saves them, so change them
            before it.
        weighted: Whether each ``step`` passes a weight for this slot's gradient. Needs ``bsp``.
        schedulers: Schedulers of the optimizer, which must be SGD without momentum. ``step`` steps them and saves them,
            so each slot counts its own steps. Do not call their ``step``.
        rate_scale: A factor of the rule's rate, under models other than ``bsp``. None divides the rate by the number of
            slots. The updates that all slots compute from the same weights then move them as far as one update by the
            mean gradient, under SGD with or without momentum.
        end: When the job ends. ``first``: when the first slot leaves the ``with`` block. The other slots report their
            untrained data in a warning, on the console and in the summary. ``all``: when the last slot leaves it. Until
            then, a slot that has left adds a gradient with almost no weight to each average. None: ``first`` under
            ``bsp``, otherwise ``all``.

    Raises:
        UsageError: The model, the rule or an object in ``state`` is not supported; the message says what to change.

    Example:
        >>> with perdure.ServerOptimizer(job, model, perdure.Adam(1e-3), state=[loader]) as training:
        ...     for x, y in loader:
        ...         loss(model(x), y).backward()
        ...         training.step()
        ...         training.zero_grad()
    """

    def __init__(
        self,
        job: Job,
        model: nn.Module,
        rule: Rule | Optimizer,
        *,
        state: Iterable[Stateful] = (),
        schedulers: Iterable[Any] = (),
        weighted: bool = False,
        rate_scale: float | None = None,
        end: str | None = None,
    ) -> None:
        self._weighted = weighted
        self._schedulers = [unwrapped(of) for of in schedulers]
        rule, kept = unwrapped(rule), [*map(unwrapped, state), *self._schedulers]
        refuse_misplaced(kept, self._schedulers)
        groups = _groups_of(model, rule)
        self._optimizer = rule if isinstance(rule, Optimizer) else None
        self._rates = Rates(self._optimizer, self._schedulers)
        self._rules = self._rates.base([rule for _, rule in groups])
        groups = [(of, rule) for (of, _), rule in zip(groups, self._rules, strict=True)]
        self._rate_scale = 1.0
        self._looked = False  # for objects that the program uses but does not pass
        if is_async(job):
            refuse_async(job, weighted)
            refuse_sync_batch_norm(model)
            self._rate_scale = 1 / job.spec["slots"] if rate_scale is None else rate_scale
            groups = [(of, scaled(rule, self._rate_scale)) for of, rule in groups]
            combine, end = "each", end or "all"
        else:
            if rate_scale is not None:
                raise UsageError("bsp needs no rate_scale, since servers apply one mean gradient: omit it")
            end = end or "first"
            combine = "weighted" if weighted or end == "all" or job._sampler is not None else "mean"
        super().__init__(job, model, groups, combine, kept, end)
        if is_async(job) and job.slot == 0:
            warn_momentum(job, [rule for _, rule in groups])
        self._gradients = _grads.Gradients(of for group, _ in groups for of in group)
        self._undo.append(self._gradients.hook())
        if self._optimizer is not None:
            self._undo.append(self._optimizer.register_step_pre_hook(_refuse_step).remove)

    def step(self, weight: float | None = None) -> int:
        """Average the gradients, apply the rule on the servers, and load the new weights.

        Args:
            weight: The weight of this slot's gradient, for example its number of samples. Required with
                ``weighted=True``, and invalid otherwise.

        Returns:
            The clock to work on next.

        Raises:
            Done: The slot's work has ended. The ``with`` block then exits normally.
            NonFinite: A gradient contains NaN or Inf. Nothing was sent.
            RolledBack: The job was rolled back, which happens under ``checkpoint:C``. Exit, and start this program
                again.
            UsageError: The program has changed a weight or a setting that the servers hold, or a gradient under bsp.
        """
        if self._weighted and weight is None:
            raise UsageError("weighted=True needs a weight: call step(weight=…), for example the number of samples")
        if not self._weighted and weight is not None:
            raise UsageError(f"step(weight={weight}) needs ServerOptimizer(…, weighted=True)")
        if self._optimizer is not None:
            self._rates.refuse_set()
            now = self._rates.base([rule_of(self._optimizer, group) for group in self._optimizer.param_groups])
            if now != self._rules:
                raise UsageError(
                    "the optimizer's settings have changed, but the servers keep the first ones: set them before "
                    "creating ServerOptimizer"
                )
        if not is_async(self.job):  # otherwise each slot's gradient is applied by itself, and may be clipped
            self._gradients.check()
        self._refuse_changed()
        if not self._looked:
            self._looked = True
            look_around(self.job, self._counted.keeps_position())
        self._counted.refuse_second_pass(self._loaders.again())
        self._loaders.check()
        self._exchange(weight)
        self._gradients.stepped()
        self._loaders.stepped()
        return self.job._now().clock

    def _shared_settings(self) -> dict[str, Any]:
        return {"rate_scale": self._rate_scale} if is_async(self.job) else {}

    def _restore(self, kept: dict[str, Any]) -> None:
        self._rates.loaded()

    def _check_step(self) -> tuple[_Now, list[list[torch.Tensor | None]]]:
        found = super()._check_step()
        if self._schedulers:
            for g, factor in zip(self._groups, self._rates.advance(self._rules), strict=True):
                g.factor = factor
        return found

    def _step_without_samples(self) -> None:
        self._idle = True
        try:
            self._exchange(None)
        finally:
            self._idle = False
        self._loaders.stepped()

    def _read(self) -> None:
        super()._read()
        self._given = self._versions()

    def _versions(self) -> list[int]:
        return [p._version for g in self._groups for p in g.rows.tensors]

    def _refuse_changed(self) -> None:
        """Raise UsageError if the program has changed a weight: the servers would overwrite the change."""
        if self._given == self._versions():
            return
        for name in (name for g in self._groups for name in g.changed()):
            raise UsageError(
                f"{name} has changed since ServerOptimizer set it, and the change would be lost, since the servers "
                "hold the weights: load weights before creating ServerOptimizer, do not step another optimizer, or use "
                "DiLoCo"
            )
        self._given = self._versions()  # an evaluation may have used averages and restored the weights

    def _source(self, g: _Group, i: int) -> torch.Tensor | None:
        return None if self._idle else g.rows.tensors[i].grad

    def _write(self, g: _Group, source: Sequence[torch.Tensor | None], i: int, place: torch.Tensor) -> None:
        grad = source[i]
        assert grad is not None
        place.copy_(grad)
        if g.decay:  # under bsp all slots have the same weights, so the mean contains their decay once
            place.add_(g.was[i], alpha=g.decay)
        if g.factor != 1:
            place.mul_(g.factor)

    def zero_grad(self) -> None:
        """Clear the gradients, like an optimizer's zero_grad."""
        self.model.zero_grad(set_to_none=True)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip this slot's gradient like torch.nn.utils.clip_grad_norm_, except under ``bsp``.

        Raises:
            UsageError: Consistency is ``bsp``, under which ``step`` refuses changed gradients.
        """
        if not is_async(self.job):
            raise UsageError(f"clip_grad_norm_ {_grads.SAYS}")
        return nn.utils.clip_grad_norm_(self.model.parameters(), max_norm, norm_type)

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing, for programs written for DistributedDataParallel. Gradients always add up until ``step``."""
        return contextlib.nullcontext()


class DiLoCo(_Model):
    """Trains each slot separately for ``sync_every`` steps of an inner optimizer, then averages the slots' changes.

    The average is the outer step, which runs on the servers (Douillard et al., arXiv 2311.08105). The program only
    calls the inner optimizer's step: DiLoCo makes the outer steps from a hook. Use the object as a context manager, as
    with ServerOptimizer.

    Between outer steps it writes drafts, which are local copies of the slot's progress, to the run's directory if that
    is on this machine. A replacement process on this machine then repeats only the steps after the last draft. Drafts
    take at most 2% of the time. None is written in a clock in which the program itself has called ``inc``, or if
    ``weights`` has no ``state_dict`` (``Count`` has one). If the directory is not writable, a RuntimeWarning is issued
    once and training continues without drafts.

    On SIGTERM the last step is saved in the job's store, and the process ends. A replacement on any machine continues
    from there.

    Args:
        job: The job, with consistency ``bsp``.
        model: The model. All slots must use the same one.
        inner: The optimizer of all trained parameters. Pass several as a list in the order in which they step; the step
            of the last one completes a step. Their states are always saved.
        sync_every: The number of inner steps between two outer steps.
        overlap: The number of inner steps that the program makes while an outer step is exchanged, less than
            ``sync_every``. With 0 it waits. With more, the averaged weights arrive ``overlap`` steps later, always
            after the same step, and keep the progress of these steps. The program waits if they have not arrived then.
            The number of slots cannot change during training.
        mix: For ``overlap``: after the exchange the weights are the fraction ``mix`` of the slot's own and 1 - ``mix``
            of the averaged ones. None adds all progress since the exchange began to the averaged ones.
        compress: How the changes are rounded before they are sent to the servers, which add in float32: ``bf16`` halves
            the bytes, ``int8`` quarters them, and ``2bit`` divides them by 15. With ``2bit`` the rounding error is
            added to the next change. None sends float32.
        compress_weights: How the servers round the averaged weights on the way back: ``bf16`` or ``int8``. ``export``
            and ``finish`` read them as they are. None sends float32.
        outer: The outer rule. None means ``Nesterov(0.7, 0.9)``.
        weights: The weight of this slot's part, called at each outer step: a ``Count`` or a function that returns a
            number above 0. None weighs all slots equally.
        schedulers: Schedulers of the inner optimizer. DiLoCo steps them after each of its steps, before it saves them.
        state: As in ``ServerOptimizer``. The inner optimizer's step saves these objects.
        end: As in ``ServerOptimizer``.

    Raises:
        UsageError: The model, an optimizer or an object in ``state`` is not supported; the message says what to change.

    Example:
        >>> with perdure.DiLoCo(job, model, inner, sync_every=100, state=[loader]):
        ...     for x, y in loader:
        ...         loss(model(x), y).backward()
        ...         inner.step()
        ...         inner.zero_grad()
    """

    _keep = True

    def __new__(cls, job: Job, *_: Any, **__: Any) -> DiLoCo:
        """Return the class for this process's part in its island, if it is in one."""
        if cls is DiLoCo and job._island is not None:
            from . import _island_diloco

            return object.__new__(_island_diloco.class_of(job._island))
        return object.__new__(cls)

    def __init__(
        self,
        job: Job,
        model: nn.Module,
        inner: Optimizer | Sequence[Optimizer],
        *,
        sync_every: int = 100,
        overlap: int = 0,
        mix: float | None = None,
        compress: str | None = None,
        compress_weights: str | None = None,
        outer: Rule | None = None,
        weights: Callable[[], float] | None = None,
        schedulers: Iterable[Any] = (),
        state: Iterable[Stateful] = (),
        end: str = "first",
    ) -> None:
        if is_async(job):
            raise UsageError(f"DiLoCo does not work with consistency {job.spec['consistency']}; choose bsp")
        self._schedulers = [unwrapped(of) for of in schedulers]
        refuse_schedulers(self._schedulers)
        if sync_every < 1:
            raise UsageError(f"invalid sync_every {sync_every}: choose 1 or more steps")
        self.sync_every, self._weights, self._steps = sync_every, weights, 0
        self.overlap, self._mix = checked(sync_every, overlap, mix)
        self._compress, self._compress_weights = compression(compress, compress_weights)
        self._fixed_slots = self.overlap > 0
        self._shown: list[torch.Tensor] | None = None  # the slot's own weights and buffers, during an evaluation
        self._window: Window | None = None  # with an overlap
        # Backward passes of this process, and whether it has begun a step of the inner optimizer.
        self._backwards, self._begun = 0, False
        self._poisoned = 0  # the first step since the last outer one with NaN or Inf in its gradient; 0: none known
        # Modules with max_norm change their weights in the forward pass.
        self._renormed = {
            plain_name(f"{name}.weight".lstrip("."))
            for name, module in model.named_modules()
            if getattr(module, "max_norm", None) is not None
        }
        self.synced = False  #: whether the inner optimizer's last step was followed by an outer step, or began one
        self.waited = 0.0  #: seconds that this process has spent on outer steps instead of inner ones
        self._reported = 0.0  # of them
        of, rule, combine = self._settings(job, model, outer, weights, end)
        self._inner = Inner(inner, model, dict(of))
        kept = [*state, *self._inner.optimizers, *self._schedulers]
        if _is_stateful(weights) and not any(has_state is weights for has_state in kept):
            kept.append(weights)
        self._drafts = self._drafts_of(job, weights)
        leads = job._island is None or job._island.rank == 0
        if job._state_why and "PERDURE_HOST" in os.environ and leads:  # the slot may continue on another machine
            job._warn(
                f"on SIGTERM, steps since the last outer step are lost to other machines, since {job._state_why}",
                stacklevel=3,
            )
        self._notice: Notice | None = None
        self._base: str | None = None  # describes the weights of the last outer step, once it is needed
        super().__init__(job, model, [(of, rule)], combine, kept, end)
        self._counts = True  # False: a trainer counts the steps and calls sync
        self._notice = self._new_notice()
        if self._notice is not None and leads:
            job._report(saves_on_term=True)
        self._before = [of.register_step_pre_hook(lambda *_: self._step_begins()) for of in self._inner.optimizers]
        self._inner.hook(self._stepped)
        self._undo += [self._inner.unhook, self._unhook_before]
        self._report_waited()
        if self._steps == self.sync_every:  # the draft of a process that ended before its outer step counted
            self._outer_step(self.overlap > 0)

    def _new_notice(self) -> Notice | None:
        keeps = self._drafts.kept or self._drafts.stored is not None
        if not keeps and not self.overlap:
            return None
        return Notice(
            self._weights_now,
            self._buffers_now,
            self._last_draft,
            prepare=self._drafts.prepare,
            linger=self.job._linger,
            keeps=keeps,
        )

    def _unhook_before(self) -> None:
        for hook in self._before:
            hook.remove()

    def _shared_settings(self) -> dict[str, Any]:
        rounded = {"compress": self._compress, "compress_weights": self._compress_weights}
        settings: dict[str, Any] = {name: of for name, of in rounded.items() if of is not None}
        if self.overlap:
            settings |= {"sync_every": self.sync_every, "overlap": self.overlap, "mix": self._mix}
        return settings

    def _kept(self, states: list[Any]) -> dict[str, Any]:
        residual = self._groups[0].residual
        return super()._kept(states) | ({} if residual is None else {"residual": residual})

    def _restore(self, kept: dict[str, Any]) -> None:
        if (residual := self._groups[0].residual) is not None:
            residual[...] = kept["residual"]

    def _step_begins(self) -> None:
        self._refuse_shown()
        if self.job._exchange is not None:
            with self._waiting():
                self.job._exchange.captured.wait()  # this step changes the optimizer's state
        self._begun = True
        if self._counts:
            self._counted.refuse_rates(self._inner.optimizers, synced=self._steps == 0, begins=True)
            self._note_poisoned()
        if self._notice is not None:
            self._notice.step()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _note_poisoned(self) -> None:
        """Record the first step with NaN or Inf in its gradient, judging by one value.

        Gradients on a GPU are skipped, since reading one would block the program.
        """
        grad = self._trained[-1].grad
        grad = None if grad is None else local(grad)
        if self._poisoned or grad is None or not grad.numel() or not grad.is_cpu or grad.layout != torch.strided:
            return
        if not math.isfinite(float(grad.detach().reshape(-1)[0])):
            self._poisoned = self._steps + 1

    def _stepped(self) -> None:
        self._refuse_changes()
        if not self._counts:
            return
        if self._over:
            raise self._done()
        self._counted.refuse_second_pass(self._loaders.again())
        self._loaders.check()
        self._advance()

    def _step_without_samples(self) -> None:
        self._advance()

    def _advance(self) -> None:
        """Count a step, and make the outer step or a draft if one is due."""
        self._loaders.stepped()
        self._steps += 1
        for scheduler in self._schedulers:
            scheduler.step()
        self._counted.stepped(self._inner.optimizers)
        if self._steps == self.overlap and not self._merge():
            raise self._done()
        self.synced = self._steps == self.sync_every
        if self._in_window():
            self._drop_notice()  # a process that continued from a draft could not merge
        else:
            if self._drafts.due() and not self.job._inced and not self.synced:
                self._draft()
            self._keep_for_notice(self._small)
        if self.synced:
            self._outer_step(self.overlap > 0)

    def _keep_for_notice(self, make: Callable[[], dict[str, Any]]) -> None:
        """Keep the last step's state for a draft, except weights and optimizers, if that takes little time."""
        if self._notice is None:
            return
        if self.job._inced:
            self._notice.drop()
        elif self._notice.affords():
            self._notice.keep(make)
        else:
            self._notice.skip()

    def _drop_notice(self) -> None:
        if self._notice is not None:
            self._notice.drop()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        if self._notice is not None:
            self._notice.step()
        yield
        self._drop_notice()

    def _small(self) -> dict[str, Any]:
        """Return a copy of everything that ``Notice`` must keep of a step."""
        return {"state": self._small_states(), "random": _random(), "steps": self._steps}

    def _small_states(self) -> list[dict[str, Any]]:
        """Return copies of the states, with {} for optimizers, whose states do not change until their next step."""
        return [{} if isinstance(of, Optimizer) else copy.deepcopy(state_of(of)) for of in self._state]

    def _last_draft(self, kept: dict[str, Any], buffers: Sequence[torch.Tensor]) -> None:
        """Write a draft of the last step, before this process ends. It runs in the thread of ``Notice``."""
        self._refuse_incs()
        self._drafts.write_last(self._drafted_from(kept, buffers))

    def _refuse_incs(self) -> None:
        """Raise PerdureError if the program has called inc in this clock, since that would be lost with the process."""
        if self.job._inced and not self._half:
            raise PerdureError("the program has added to a table in this clock")

    def _drafted_from(self, kept: dict[str, Any], buffers: Sequence[torch.Tensor]) -> dict[str, Any]:
        """Return a draft of a kept state and the current weights and optimizers."""
        state = [
            of.state_dict() if isinstance(of, Optimizer) else was
            for of, was in zip(self._state, kept["state"], strict=True)
        ]
        tensors = [*self._weights_now(), *buffers]
        return self._drafted_as(state, kept["random"], tensors, kept.get("steps", self._steps))

    def _weights_now(self) -> list[torch.Tensor]:
        """Return this slot's own weights, also while the model has others for an evaluation."""
        return (self._own() if self._shown is None else self._shown)[: len(self._trained)]

    @staticmethod
    def _settings(
        job: Job, model: nn.Module, outer: Rule | None, weights: Callable[[], float] | None, end: str
    ) -> tuple[list[tuple[str, nn.Parameter]], Rule, str]:
        """Return the trained parameters, their outer rule, and how the servers combine the slots' updates."""
        trained = [(n, p) for n, p in named_parameters(model) if p.requires_grad]
        rule = outer if outer is not None else Nesterov(0.7, 0.9)
        _refuse_rule(rule)
        if rule.decay:
            raise UsageError("the outer rule must not have decay; use weight_decay of the inner optimizer instead")
        by_weight = weights is not None or end == "all" or job._sampler is not None
        return trained, rule, "weighted" if by_weight else "mean"

    @staticmethod
    def _drafts_of(job: Job, weights: Callable[[], float] | None) -> Drafts:
        """Return the slot's drafts. None are written if the counted weight would die with the process."""
        if weights is not None and not _is_stateful(weights):
            return Drafts(None, job.slot)
        return Drafts(job.run_folder, job.slot, None if job._state_why else Stored(job))

    @staticmethod
    def _drafted(
        job: Job,
        model: nn.Module,
        sync_every: int,
        outer: Rule | None,
        weights: Callable[[], float] | None,
        end: str,
        compress: str | None,
        compress_weights: str | None,
    ) -> Any:
        """Return the draft from which a ``DiLoCo`` with these arguments would continue, or None."""
        if job._now().clock == 0:
            return None

        @functools.cache
        def origin() -> str:
            of, rule, combine = DiLoCo._settings(job, model, outer, weights, end)
            g = _Group(job, _NAME.format(0), _Rows(job, of), rule, combine, DiLoCo._keep, compress, compress_weights)
            g.begun.get_run(0, g.rows.rows, out=g.first)
            g.fetch()
            return _origin(_where(job), sync_every, g)

        return DiLoCo._drafts_of(job, weights).newest(origin)

    def _own(self) -> list[torch.Tensor]:
        return [*self._trained, *self._buffers_now()]

    def _buffers_now(self) -> list[torch.Tensor]:
        return [b for b in self.model.buffers() if b.numel()]

    def _draft(self, state: list[dict[str, Any]] | None = None) -> None:
        """Write a draft of the last step. state: the states of the objects; None: their current ones."""
        states = self._states() if state is None else state
        self._drafts.write(self._drafted_as(states, _random(), self._own(), self._steps))
        if state is None:
            self._late.saved(states)

    def _drafted_as(
        self, state: list[dict[str, Any]], random: dict[str, Any], tensors: Sequence[torch.Tensor], steps: int
    ) -> dict[str, Any]:
        """Return a draft."""
        return {
            "origin": self._origin(),
            "steps": steps,
            "tensors": list(tensors),
            "state": state,
            "random": random,
        }

    def _origin(self) -> str:
        """Return the starting point of the steps since the last outer one. It reads the weights of that once."""
        if self._base is None:
            self._base = _origin(self._where, self.sync_every, self._groups[0])
        return self._base

    def _synced_at(self) -> None:
        """Record the starting point of the next steps."""
        self._where, self._base = _where(self.job), None

    def _load(self) -> None:
        super()._load()
        self._synced_at()
        draft = self._drafts.newest(self._origin)
        if draft is not None:
            refuse_other_ranks(self.job._island, draft)
            self._continue(draft)

    def _continue(self, draft: dict[str, Any]) -> None:
        """Continue from a draft."""
        with torch.no_grad():
            for tensor, was in zip(self._own(), draft["tensors"], strict=True):
                tensor.copy_(was)
        for of, state in zip(self._state, draft["state"], strict=True):
            load(of, state)
        _set_random(draft["random"])
        self._taken_over = True
        self._steps = draft["steps"]
        if self._window is not None:
            self._window.open = False  # drafts are written after the merge

    def _read(self) -> None:
        super()._read()
        if self._window is not None:
            self._window.restart(self._groups[0].rows.tensors)

    def _resume_window(self, kept: dict[str, Any] | None) -> None:
        if not self.overlap:
            return
        weights = self._groups[0].rows.tensors
        self._window = Window(weights, self._mix)
        self._window.restart(weights)
        if kept is None or "sent" not in kept:
            return
        self._window.resume(kept["sent"])
        with torch.no_grad():
            for tensor, was in zip(self._own(), [*kept["sent"], *kept["buffers"]], strict=True):
                tensor.copy_(was)

    def sync(self) -> int:
        """Make an outer step: average this slot's changes since the last one with those of the other slots.

        DiLoCo calls it every ``sync_every`` steps. This one does not overlap with inner steps. If one is being
        exchanged, it waits for that and merges it first.

        Returns:
            The clock to work on next.

        Raises:
            Done: The slot's work has ended. The ``with`` block then exits normally.
            NonFinite: The weights contain NaN or Inf. Nothing was sent.
            RolledBack: The job was rolled back. Exit, and start this program again.
        """
        self._refuse_shown()
        if not self._merge():
            raise self._done()
        self._outer_step(overlaps=False)
        return self.job._now().clock

    def _outer_step(self, overlaps: bool) -> None:
        """Make an outer step, or begin one that overlaps with the next inner steps."""
        steps, self._steps = self._steps, 0
        poisoned, self._poisoned = self._poisoned, 0
        try:
            with self._waiting():
                weight = None if self._weights is None else self._weights()
                if overlaps:
                    self._begin_exchange(weight)
                else:
                    if self._notice is not None:
                        self._origin()  # the exchange changes the weights that it reads
                    self._exchange(weight)
                    self._synced_at()
            self._report_waited()
        except Done:
            self._ending.unsent = steps
            raise
        except NonFinite as error:
            self._drafts.drop()  # a process that continued from a draft would fail in the same way
            if poisoned:
                raise NonFinite(
                    f"{error}; the first gradient with NaN or Inf was in step {poisoned} of the {steps} since the last "
                    "outer step"
                ) from None
            raise
        finally:
            self._drop_notice()

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        finally:
            self.waited += time.monotonic() - begun

    def _begin_exchange(self, weight: float | None) -> None:
        """Hand over the clock's update, and let a thread end the clock and read the result.

        The program changes its objects from now on. So their states are copied, those of optimizers by the thread: they
        are large, and do not change before the next step.
        """
        window = self._window
        assert window is not None
        assert not window.open
        before, sources = self._check_step()
        inner = [any(of is optimizer for optimizer in self._inner.optimizers) for of in self._state]
        states = [
            of.state_dict() if is_inner else copy.deepcopy(state_of(of))
            for of, is_inner in zip(self._state, inner, strict=True)
        ]
        buffers = [b.detach().to("cpu", copy=True) for b in self._buffers_now()]
        self._pinned.wait_for(self._own())  # for the copies on a GPU, since the thread has another stream
        _state.Checked(states)  # before the update is handed over
        self._half = True
        g = self._groups[0]
        if g.compress is None:
            self._hand_over(sources, weight)
        else:  # the thread computes and rounds the change
            for sent, now in zip(window.sent, sources[0], strict=True):
                assert now is not None
                sent.copy_(now)
            self._send_buffers()
            self._weigh(weight)
        self.job._flush_lent({table._number for g in self._groups for table in (g.table, g.begun)})
        kept = _state.Encoded(self._kept(states) | {"sent": window.sent, "buffers": buffers}, late=g.residual)
        self._late.saved(states)
        self.job._begin_clock()
        if self._sampler is not None:
            self._sampler._enter_window()
        optimizers = [state for state, is_inner in zip(states, inner, strict=True) if is_inner]

        def write(i: int, place: torch.Tensor) -> None:
            torch.sub(self._given(g, i), window.sent[i].to(torch.float32), out=place)

        def send(captured: Callable[[], None]) -> None:
            kept.capture(optimizers)
            captured()
            if g.compress is None:
                g.table.flush()  # the end of the clock would send it only after the state
            else:
                with torch.no_grad():
                    g.send_rounded(write)
            self.job._save(kept)

        def read() -> None:
            g.fetch()
            if self._buffers is not None:
                self._buffer_table.get_run(0, self._buffers.rows, out=self._buffer_values)

        window.open = True
        Exchange(self.job, before, send, read)
        self._half = False

    def _merge(self) -> bool:
        """Wait for the result of the outer step in progress, if there is one, and merge it with the window's steps.

        Returns False if the job has ended meanwhile, so that the steps of the window do not count.
        """
        window = self._window
        if window is None or not window.open:
            return True
        with self._waiting():
            if self.job._exchange is not None:
                self.job._exchange.wait()
                self.job._exchange = None
            now = self.job._now()
            self._refuse_share(now.ended or now.share == self._share, self._share.of)
            window.open = False
            if now.ended:
                self._ending.unsent, self._steps = 0 if self.job._ended_itself else self._steps, 0
                return False
            if self._sampler is not None:
                self._sampler._leave_window()
            self._half = True  # a part of the weights would be merged
            g = self._groups[0]
            with self._changing():
                for i, tensor in enumerate(g.rows.tensors):
                    window.merge(i, tensor, g.was[i])
                if self._buffers is not None:
                    self._find_buffers()
                    self._buffers.take(self._buffer_values)
            self._half = False
            self._synced_at()
        self._report_waited()
        return True

    def _report_waited(self) -> None:
        """Report the time on outer steps. With an overlap, calls in the exchange's thread are not a wait."""
        self.job._report_waited(self.waited - self._reported)
        self._reported = self.waited

    def _in_window(self) -> bool:
        """Reports whether the result of an outer step is still to be merged."""
        return self._window is not None and self._window.open

    def _refuse_shown(self) -> None:
        if self._shown is not None:
            raise UsageError("the model has the shared weights for an evaluation: leave shared_weights() before a step")

    def _await_weights(self) -> None:
        if self.job._exchange is not None:
            self.job._exchange.wait()

    @contextlib.contextmanager
    def shared_weights(self) -> Iterator[None]:
        """Set the model to the shared weights, those of the last outer step, for an evaluation.

        They are the same in all slots. Afterwards the model has its own weights and buffers again, bit by bit.

        Example:
            >>> with d.shared_weights(), torch.no_grad():
            ...     print(loss(model(x), y))
        """
        self._await_weights()
        if self._notice is not None and self._notice.lacks() and not self.job._inced:
            self._notice.keep(self._small)  # the next step may be far away
        own = [tensor.detach().clone() for tensor in self._own()]
        self._shown = own  # first: a draft on SIGTERM has these
        try:
            self._take_shared()
            yield
        finally:
            with torch.no_grad():
                for tensor, was in zip(self._own(), own, strict=True):
                    tensor.copy_(was)
            self._shown = None

    def _take_shared(self) -> None:
        """Set the model to the shared weights."""
        self._groups[0].rows.take(self._groups[0].added)
        if self._buffers is not None:
            self._find_buffers()
            self._buffers.take(self._buffer_values)

    def _changed(self) -> Iterator[str]:
        """Yield the names of the parameters that the program has changed since the last outer step."""
        return self._groups[0].changed()

    def _source(self, g: _Group, i: int) -> torch.Tensor | None:
        return g.rows.tensors[i].detach()

    def _write(self, g: _Group, source: Sequence[torch.Tensor | None], i: int, place: torch.Tensor) -> None:
        now = source[i]
        assert now is not None
        if self._window is None:
            torch.sub(self._given(g, i), now, out=place)
            return
        finite = True
        for base, here, change, sent in blocks(self._given(g, i), now, place, self._window.sent[i]):
            torch.sub(base, here, out=change)
            sent.copy_(here)
            finite = finite and _is_finite(change)
        if not finite:
            raise NonFinite(f"the update of {g.rows.names[i]} is too large for float32; nothing was sent")

    def _given(self, g: _Group, i: int) -> torch.Tensor:
        """Return the weights against which the next change is taken, in float32, rounded to the parameter's type."""
        dtype, given = g.rows.tensors[i].dtype, g.was[i]
        if self._window is not None:
            given = self._window.base(i, given)
        return given if dtype == torch.float32 else given.to(dtype).to(torch.float32)

    def _backward(self) -> None:
        super()._backward()
        if self._counts:
            self._counted.refuse_rates(self._inner.optimizers, synced=self._steps == 0, begins=False)
        self._backwards += 1
        if self._backwards in _LOOKS:
            self._refuse_other_steps()

    def _refuse_other_steps(self) -> None:
        """Raise UsageError if weights have changed without a step of the inner optimizer, since that would be lost."""
        # In this process, or before the draft that it loaded, or before the outer step that it resumes.
        if self._begun or self._steps or self._in_window():
            return
        for name in self._changed():
            if name not in self._renormed:
                raise UsageError(
                    f"{name} has changed since DiLoCo was created, but {self._inner.says()}, the inner optimizer, has "
                    "made no step: load weights before creating DiLoCo, and call the step of the optimizer passed as "
                    "inner; changes by another optimizer, or by one inside backward, would be lost"
                )

    def finish(self) -> None:
        """End this slot's work and wait for all slots, after an outer step for the steps since the last one."""
        self._refuse_half()
        self._refuse_shown()
        self._refuse_other_steps()
        self._merge()
        if self._steps and self.job.ended and not self._over:
            self._ending.unsent, self._steps = self._steps, 0
        if self._steps and not self._over:
            with contextlib.suppress(Done):  # another slot may end the job at this moment
                self.sync()
        super().finish()
        if self._in_block:  # __exit__ removes these hooks
            self._undo += [of.register_step_pre_hook(_refuse_late_step).remove for of in self._inner.optimizers]
        if self._notice is not None:
            self._notice.close()
        self._drafts.forget()
        if self._drafts.stored is not None:
            with contextlib.suppress(PerdureError):  # it is small, and does no harm
                self._drafts.stored.delete()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return super().__exit__(kind, error, trace)
        finally:
            if self._notice is not None:
                self._notice.close()


def _refuse_step(*_: Any) -> None:
    raise UsageError("the servers run this optimizer: call ServerOptimizer.step, not optimizer.step")


def _refuse_late_step(*_: Any) -> None:
    raise UsageError(
        "this step would change the model of this process only, since finish() has ended the training: end the with "
        "block first, or use another optimizer, to train the model further on its own"
    )


def _refuse_rule(rule: Rule) -> None:
    """Raise UsageError for rules that need the weights themselves, since rows hold only the sum of changes."""
    if isinstance(rule, (Add, Set, FTRL)):
        raise UsageError(
            f"perdure.{type(rule).__name__} does not work with ServerOptimizer or DiLoCo; use SGD, Nesterov or Adam"
        )
    if rule.decay and isinstance(rule, Adam):
        raise UsageError(
            "perdure.Adam has decoupled decay, which needs the weights, but the servers hold only the changes to them; "
            "use torch.optim.Adam(weight_decay=…), which adds the decay to the gradient"
        )
    if rule.decay and (rule.clip_value or rule.clip_norm):
        raise UsageError("a rule for weights cannot have both decay and clipping; omit one of them")


def _is_finite(values: torch.Tensor) -> bool:
    # The sum needs only one pass. If it is finite, all values are; if not, the sum may have overflowed.
    return math.isfinite(float(values.sum())) or bool(torch.isfinite(values).all())


def _is_stateful(of: Any) -> TypeGuard[Stateful]:
    return hasattr(of, "state_dict") and hasattr(of, "load_state_dict")


def _where(job: Job) -> str:
    """Return the clock and the slot's share of the data as text."""
    return f"{job._now().clock} {job.share}"


def _origin(where: str, sync_every: int, g: _Group) -> str:
    """Return the starting point of the steps since the last outer one: clock, share, sync_every and weights."""
    assert g.weights is not None
    words = g.weights.reshape(-1).view(np.uint64)  # much faster than a hash, which outer steps would wait for
    return f"{where} {sync_every} {int(np.add.reduce(words)):x} {int(np.bitwise_xor.reduce(words)):x}"


def _refuse_unreached(job: Job, state: Sequence[Stateful], tensors: Sequence[torch.Tensor]) -> None:
    """Raise UsageError before training if the states, or tensors, need a store that this machine cannot reach."""
    size = sum(_bytes_of(of) for of in state if isinstance(of, Optimizer))
    size += sum(t.numel() * t.element_size() for t in tensors)
    if size > job._state_bytes and job._state_why:
        of = "the optimizer, and the weights that an overlap sends," if tensors else "the optimizer"
        raise UsageError(f"the state of {of} is {size / 2**20:.1f} MiB: {job._state_why}")


def _separate_generators(state: Sequence[Any], slot: int) -> None:
    """Give each loader a generator of its own for the seed that it draws when it starts.

    A replacement process starts it once more, in the middle of its data. If the seed came from the program's random
    numbers, or from the generator of the order, these would continue differently.
    """
    for of in state:
        if not hasattr(of, "generator"):
            continue
        samplers = [getattr(of, "sampler", None), getattr(getattr(of, "batch_sampler", None), "sampler", None)]
        orders = [g for sampler in samplers if (g := getattr(sampler, "generator", None)) is not None]
        if of.generator is None or any(of.generator is g for g in orders):
            seed = torch.initial_seed() if of.generator is None else of.generator.initial_seed()
            of.generator = torch.Generator().manual_seed(seed + slot)


def _refuse_stateless(objects: Iterable[Any], where: str) -> None:
    """Raise UsageError for objects that cannot be saved. where: the argument that contains them."""
    for of in objects:
        if not _is_stateful(of):
            raise UsageError(
                f"the {type(of).__name__} in {where} has no state_dict and load_state_dict, so it cannot be saved: "
                "instead of a DataLoader use torchdata's StatefulDataLoader, or a Sampler"
            )


def _refuse_unkept(state: Sequence[Stateful]) -> None:
    """Raise UsageError before training for states that cannot be saved. Asking a loader may start it: skip those."""
    for of in state:
        if not is_loader(of) and not getattr(of, "begins_later", False):
            _state.Checked(of.state_dict(), f"the state of {type(of).__name__}")


def _refuse_trained(state: Sequence[Stateful], weights: Sequence[nn.Parameter]) -> None:
    """Raise UsageError for modules in ``state`` that contain weights of the model.

    A replacement process would load weights from before the last step.
    """
    trained = set(weights)
    for of in state:
        if isinstance(of, nn.Module) and any(p in trained for p in of.parameters()):
            raise UsageError(
                f"state={type(of).__name__} contains trained parameters, which the servers already hold; list only "
                "other objects in state="
            )


def _buffers_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that are not empty, by name."""
    return {plain_name(n): b for n, b in model.named_buffers() if b.numel()}


def _frozen_places(frozen: Frozen, handed: _Bytes | None) -> Iterator[Place]:
    """Yield the frozen parameters, with their places in the table ``frozen`` if slot 0 distributes them."""
    for i, (name, p, check) in enumerate(frozen.compared()):
        table, at = ("", 0) if handed is None else ("frozen", handed.starts[i])
        yield Place(name, p, "frozen", table, at, check)


def _persistent_of(model: nn.Module) -> set[str]:
    """Return the names of the buffers in the model's state_dict."""
    return {
        plain_name(f"{prefix}.{name}".lstrip("."))
        for prefix, module in model.named_modules()
        for name in module._buffers
        if name not in module._non_persistent_buffers_set
    }


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB".replace(".00", "")


def _bytes_of(optimizer: Optimizer) -> int:
    """Estimate the final size of an optimizer's state. Other types than Adam and SGD count at their current size."""
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
    """Return the groups of trained parameters, each with its rule."""
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
                f"the optimizer has parameters that the model does not train{more}; pass only trained parameters to it"
            )
        groups.append(([(names.pop(p), p) for p in group["params"]], rule_of(rule, group)))
    if names:
        raise UsageError(
            f"the optimizer lacks {', '.join(sorted(names.values()))}; pass all trained parameters, or freeze these"
        )
    return groups


def rule_of(optimizer: Optimizer, group: dict[str, Any]) -> Rule:
    """Return the update rule that is equivalent to an optimizer of torch.optim for one parameter group.

    Args:
        optimizer: The optimizer.
        group: One of its ``param_groups``.

    Returns:
        The rule.

    Raises:
        UsageError: No rule is equivalent; the message names the unsupported setting.
    """
    kind, rate, decay = type(optimizer), float(group["lr"]), group.get("weight_decay", 0.0)
    refused = [name for name in ("amsgrad", "maximize", "lr_decay", "dampening") if group.get(name)]
    if decay and (kind is torch.optim.AdamW or group.get("decoupled_weight_decay")):
        refused.append(f"decoupled weight_decay of {kind.__name__} (Adam adds it to the gradient, which is supported)")
    if kind is torch.optim.Adagrad and group.get("initial_accumulator_value"):
        refused.append("initial_accumulator_value")
    if refused:
        raise UsageError(
            f"{kind.__name__}: servers do not support {', '.join(refused)}; omit it, or use another optimizer"
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
    raise UsageError(f"servers do not support {kind.__name__}; use SGD, Adam or Adagrad, or a rule of perdure")


def _random() -> dict[str, Any]:
    """Return the states of all random number generators."""
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
                f"random states of {name} devices {count} to {len(states) - 1} are not restored, since this machine "
                f"has {count or 'none'}: training continues with different random numbers on those devices",
                RuntimeWarning,
                stacklevel=2,
            )


def _devices() -> dict[str, Any]:
    """Return torch's modules for the kinds of devices in this machine that have random states, by name."""
    of = {name: getattr(torch, name, None) for name in ("cuda", "xpu")}
    return {name: module for name, module in of.items() if module is not None and module.is_available()}
