"""The memory that the ranks of an island share, and how their parts of tensors map to it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from . import _state
from ._frozen import Frozen, named_parameters
from ._island import Island
from ._local import is_sharded, local
from ._shared import Lot
from .errors import UsageError
from .job import Job
from .torch import _DIM, _buffers_of

_ALIGN = 64  # bytes
PARTS = 64  # of the weights, which take turns in comparisons between slots

Place = tuple[slice, ...]


class Mirror:
    """A copy of the model in memory that all ranks of the island share. Parameters in it are whole.

    Args:
        island: The island.
        trained: The trained parameters.
        copied: Returns the buffers by name. Those of rank 0 are valid.
        once: Frozen parameters by name, whose values of rank 0 are valid at the first ``take``.
        job: The job whose agent reads a table of the trained parameters into the memory. None: it reads none.
    """

    def __init__(
        self,
        island: Island,
        trained: Sequence[tuple[str, torch.Tensor]],
        copied: Callable[[], dict[str, torch.Tensor]],
        once: dict[str, torch.Tensor],
        job: Job | None = None,
    ) -> None:
        self._island, self._named, self._copied, self._once = island, list(trained), copied, once
        self.places = [place_of(name, p) for name, p in trained]
        others = copied() | once
        for name, t in others.items():
            if is_sharded(t):
                raise UsageError(f"{name} is a DTensor that is not trained; an island needs plain buffers")
        if job is None:
            sizes = [_aligned(p.numel() * p.element_size()) for _, p in trained]
        else:  # as in the rows of the table
            sizes = [-(-p.numel() // _DIM) * _DIM * 4 for _, p in trained]
            sizes.append(max(0, job.spec["shards"] * _DIM * 4 - sum(sizes)))
        count = len(sizes)
        sizes += [_aligned(t.numel() * t.element_size()) for t in others.values()]
        starts = np.cumsum([0, *sizes]).tolist()
        lot = _shared(island, max(starts[-1], 1), job)
        memory = torch.from_numpy(lot.bytes)

        def view(t: torch.Tensor, start: int, kind: torch.dtype) -> torch.Tensor:
            return memory[start : start + t.numel() * kind.itemsize].view(kind).view(t.shape)

        self.tensors = [view(p, start, p.dtype) for (_, p), start in zip(trained, starts, strict=False)]
        if job is not None:
            self.rows = lot.bytes[: starts[count]].view(np.float32).reshape(-1, _DIM)  #: the table
            #: the parameters' values in the table, in the same memory as ``tensors``
            self.values = [view(p, start, torch.float32) for (_, p), start in zip(trained, starts, strict=False)]
        found = [view(t, start, t.dtype) for t, start in zip(others.values(), starts[count:], strict=False)]
        self.sharded = any(is_sharded(p) for _, p in trained)
        self._others = dict(zip(others, found, strict=True))
        # Ranks that write: of equal copies the first one. Rank 0 has the first of all copies of plain tensors.
        self._writes = [_is_first(island, p) for _, p in trained]

    def put(self) -> None:
        """Write this rank's part of the trained parameters."""
        for (_, p), tensor, place, writes in zip(self._named, self.tensors, self.places, self._writes, strict=True):
            if writes:
                tensor[place].copy_(local(p))

    def put_gradients(self, ready: Container[int]) -> None:
        """Write this rank's part of the gradients of sharded parameters. Rank 0 has whole gradients of the others.

        Args:
            ready: The numbers of the parameters that have a gradient on this rank. Others get zeros.
        """
        for i, (_, p) in enumerate(self._named):
            if self._writes[i] and is_sharded(p):
                part = self.tensors[i][self.places[i]]
                if i in ready and p.grad is not None:
                    part.copy_(local(p.grad))
                else:
                    part.zero_()

    def take_means(self, has: Container[int], total: float) -> None:
        """Set this rank's part of the gradients to the table's values, divided by their total weight.

        Args:
            has: The numbers of the parameters that have a mean.
            total: The sum of the slots' weights.
        """
        with torch.no_grad():
            for i, (_, p) in enumerate(self._named):
                if i in has:
                    if p.grad is None:
                        p.grad = torch.empty_like(p)
                    divide(self.values[i][self.places[i]], total, local(p.grad))

    def take_weights(self) -> None:
        """Set this rank's part of the trained parameters to the table's values, and read the other tensors."""
        with torch.no_grad():
            for (_, p), values, place in zip(self._named, self.values, self.places, strict=True):
                local(p).copy_(values[place])
        self.take_others()

    def bits(self, turn: int) -> int:
        """Return the sum of the bits of those rows of the trained parameters whose turn it is and which it writes."""
        total = 0
        for (_, p), place, writes in zip(self._named, self.places, self._writes, strict=True):
            if writes:
                start, of = (place[0].start, len(p)) if place else (0, 1)
                total += bits_of(local(p), start, of, turn)
        return total

    def put_others(self) -> None:
        """Write the other tensors, which only rank 0 does."""
        for t, tensor in self._pairs():
            tensor.copy_(t.detach())

    def _pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the other tensors and their copies, except those without a copy: buffers that can be recomputed."""
        for name, t in (self._copied() | self._once).items():
            tensor = self._others.get(name)
            if tensor is not None and (tensor.shape, tensor.dtype) == (t.shape, t.dtype):
                yield t, tensor

    def take(self) -> None:
        """Read this rank's part of the trained parameters, and the other tensors."""
        with torch.no_grad():
            for (_, p), tensor, place in zip(self._named, self.tensors, self.places, strict=True):
                local(p).copy_(tensor[place])
        self.take_others()

    def take_others(self) -> None:
        """Read the other tensors."""
        with torch.no_grad():
            for t, tensor in self._pairs():
                t.copy_(tensor)
        self._once = {}

    def changed(self) -> Iterator[str]:
        """Yield the names of the parameters whose local part differs from the mirror."""
        for (name, p), tensor, place in zip(self._named, self.tensors, self.places, strict=True):
            if not torch.equal(local(p).cpu(), tensor[place]):
                yield name

    def copies(self) -> list[bool]:
        """Return for each parameter whether it may be the copy of another rank's, in whole or in part."""
        return [not is_sharded(p) or any(of.is_replicate() for of in p.placements) for _, p in self._named]

    def places_of_copies(self) -> list[list[list[int]]]:
        """Return where such copies are, for ``compare``."""
        pairs = zip(self.places, self.copies(), strict=True)
        return [[[s.start, s.stop] for s in place] for place, copy in pairs if copy]

    def norms(self, gradients: bool = False, turn: int | None = None) -> bytes:
        """Return the norms of this rank's copies of the parameters, or of their gradients: they identify the values.

        Args:
            gradients: Whether to use the gradients.
            turn: The number of a part of the rows, as for ``bits_of``. None uses all rows.
        """
        tensors = []
        for (_, p), place, copy in zip(self._named, self.places, self.copies(), strict=True):
            if copy:
                t = p.grad if gradients else p
                of = torch.zeros(0) if t is None else local(t)
                if turn is not None and t is not None:
                    of = rows_of(of, place[0].start if place else 0, p.shape[0] if place else 1, turn)
                tensors.append(of.to(torch.float32))
        if not tensors:
            return b""
        norms: bytes = torch.stack([norm.cpu() for norm in torch._foreach_norm(tensors)]).numpy().tobytes()
        return norms

    def compare(self, places: Sequence[Any], norms: Sequence[bytes | bytearray], what: str = "") -> None:
        """Raise UsageError if copies of the same values differ between ranks.

        Args:
            places: What ``places_of_copies`` returns on each rank.
            norms: What ``norms`` returns on each rank.
            what: Precedes the name of a parameter.
        """
        names = [name for (name, _), copy in zip(self._named, self.copies(), strict=True) if copy]
        seen: dict[tuple[str, str], tuple[int, int]] = {}
        for rank, (own, of) in enumerate(zip(places, norms, strict=True)):
            for name, place, norm in zip(names, own, np.frombuffer(of, np.int32).tolist(), strict=True):
                first, known = seen.setdefault((name, str(place)), (rank, norm))
                if known != norm:
                    raise UsageError(
                        f"{what}{name} differs between rank {first} and rank {rank} of this island, so each of them "
                        "trains a model of its own; wrap the model in DistributedDataParallel or use fully_shard, and "
                        "change no weights on one rank alone"
                    )


def mirror_of(
    island: Island,
    model: nn.Module,
    trained: Sequence[tuple[str, torch.Tensor]],
    settings: dict[str, Any],
    job: Job | None = None,
) -> Mirror:
    """Return the mirror of a model. Raises UsageError on all ranks unless all have the same model and settings.

    Args:
        island: The island.
        model: The model.
        trained: Its trained parameters.
        settings: Other values of JSON's types, by what messages call them.
        job: As for ``Mirror``.
    """
    handed = {id(p) for p in Frozen(model).handed}
    small: dict[str, torch.Tensor] = {name: p for name, p in named_parameters(model) if id(p) in handed}
    named = [*trained, *_buffers_of(model).items(), *small.items()]
    island.agree(
        settings
        | {
            "tensors": [[name, str(t.dtype).removeprefix("torch."), *t.shape] for name, t in named],
            "a sharded model:": [is_sharded(p) for _, p in trained],
        }
    )
    return Mirror(island, trained, lambda: _buffers_of(model), small, job)


def place_of(name: str, p: torch.Tensor) -> Place:
    """Return the place of this rank's part in the whole parameter."""
    if not is_sharded(p):
        return tuple(slice(0, n) for n in p.shape)
    sizes, starts = list(p.shape), [0] * p.dim()
    coordinate = p.device_mesh.get_coordinate()
    for at, parts, placement in zip(coordinate, p.device_mesh.shape, p.placements, strict=True):
        if placement.is_replicate():
            continue
        if type(placement).__name__ != "Shard":
            raise UsageError(
                f"{name} has the placement {placement}, which an island cannot map to rows; use fully_shard alone, or "
                "with a mesh for HSDP: placements must be Shard or Replicate"
            )
        dim = placement.dim
        each = -(-sizes[dim] // parts)  # like torch.chunk
        first = min(at * each, sizes[dim])
        starts[dim] += first
        sizes[dim] = min(each, sizes[dim] - first)
    if tuple(sizes) != tuple(local(p).shape):
        raise UsageError(
            f"{name} has the local shape {list(local(p).shape)} instead of {sizes}, so an island cannot map it to "
            "rows; use fully_shard"
        )
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


def _is_first(island: Island, p: torch.Tensor) -> bool:
    """Reports whether this rank has the first of all equal copies of a parameter's part."""
    if not is_sharded(p):
        return island.rank == 0
    coordinate = p.device_mesh.get_coordinate()
    return all(not of.is_replicate() or at == 0 for at, of in zip(coordinate, p.placements, strict=True))


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _shared(island: Island, size: int, job: Job | None) -> Lot:
    """Return memory that all ranks share. job: the job whose agent shares it as well, or None."""
    if island.rank == 0 and job is not None:
        return job._map(size, island.send_file)
    lot = Lot(size, None if island.rank == 0 else island.receive_file())
    if island.rank == 0:
        island.send_file(lot.fd)
    lot.close_file()
    return lot


def refuse_group(island: Island) -> None:
    """Raise UsageError unless the ranks of the island are the process group."""
    distributed = torch.distributed
    if not distributed.is_initialized():
        raise UsageError(
            f"this island has {island.size} ranks, but no process group, so each rank would train a model of its own; "
            "call torch.distributed.init_process_group, and use DistributedDataParallel or fully_shard"
        )
    rank, size = distributed.get_rank(), distributed.get_world_size()
    if (rank, size) != (island.rank, island.size):
        raise UsageError(
            f"this process is rank {rank} of {size} in its process group, but rank {island.rank} of {island.size} in "
            "its island; call init_process_group without rank and world_size"
        )


def bytes_of(state: Any) -> bytes:
    encoded = _state.Encoded(state)
    room = np.empty(encoded.size, np.uint8)
    encoded.write(room)
    return room.tobytes()


def refuse_other_layouts(of: Optimizer) -> None:
    """Raise UsageError for optimizers whose DTensors are laid out in another way than their parameters."""
    for p, entry in of.state.items():
        for name, value in entry.items() if isinstance(entry, dict) else ():
            if not isinstance(value, torch.Tensor) or not is_sharded(value):
                continue
            if not is_sharded(p) or (value.placements, value.shape) != (p.placements, p.shape):
                raise UsageError(
                    f"{type(of).__name__} keeps {name} with placements or a shape other than its parameter's, which an "
                    "island cannot restore; use an optimizer such as torch.optim.AdamW"
                )


def tensors_of(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for of in state.values():
            yield from tensors_of(of)
    elif isinstance(state, (list, tuple)):
        for of in state:
            yield from tensors_of(of)


def bits_of(t: torch.Tensor, start: int, of: int, turn: int) -> int:
    """Return the sum of the bits, as integers, of those rows of a parameter whose turn it is. It may overflow.

    The sum over the parts of a parameter that ranks hold is the same however they divide it.

    Args:
        t: Some of the parameter's rows.
        start: The number of the first one.
        of: The number of rows of the parameter.
        turn: The number of a part.
    """
    rows = rows_of(t, start, of, turn)
    if rows.numel() == 0:
        return 0
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()]
    return int(rows.contiguous().view(integer).sum(dtype=torch.int64))


def rows_of(t: torch.Tensor, start: int, of: int, turn: int) -> torch.Tensor:
    """Return those rows of a parameter whose turn it is, as for ``bits_of``."""
    each = -(-of // PARTS)
    first, last = max(turn * each - start, 0), max((turn + 1) * each - start, 0)
    return t.reshape(1)[first:last] if t.dim() == 0 else t[first:last]


def divide(values: torch.Tensor, by: float, to: torch.Tensor) -> None:
    """Write quotients of float32 into a tensor of any type and device."""
    if to.dtype == torch.float32 and to.is_cpu:
        torch.div(values, by, out=to)
    else:
        to.copy_(values / by)
