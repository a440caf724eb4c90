"""DiLoCo in an island: rank 0 makes the outer steps, and the ranks share a mirror of the model.

docs/design/islands.md describes the protocol.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from . import _state
from ._draft import Drafts, Stored
from ._frozen import Frozen, named_parameters
from ._inner import load
from ._island import Island
from ._island_notice import IslandNotice
from ._late import is_loader
from ._local import is_sharded, local
from ._notice import Notice
from ._shared import Lot
from .errors import UsageError
from .job import Job, _Now
from .rules import Rule
from .torch import DiLoCo, _buffers_of, _is_stateful, _random, _Rows, _set_random

_ALIGN = 64  # bytes

Place = tuple[slice, ...]


class _Mirror:
    """A copy of the model in memory that all ranks of the island share. Parameters in it are whole.

    Args:
        island: The island.
        trained: The trained parameters.
        copied: Returns the buffers by name. Those of rank 0 are valid.
        once: Frozen parameters by name, whose values of rank 0 are valid at the first ``take``.
    """

    def __init__(
        self,
        island: Island,
        trained: Sequence[tuple[str, torch.Tensor]],
        copied: Callable[[], dict[str, torch.Tensor]],
        once: dict[str, torch.Tensor],
    ) -> None:
        self._island, self._named, self._copied, self._once = island, list(trained), copied, once
        self.places = [_place_of(name, p) for name, p in trained]
        others = copied() | once
        for name, t in others.items():
            if is_sharded(t):
                raise UsageError(f"{name} is a DTensor that is not trained; an island needs plain buffers")
        tensors = [*(p for _, p in trained), *others.values()]
        sizes = [-(-t.numel() * t.element_size() // _ALIGN) * _ALIGN for t in tensors]
        starts = np.cumsum([0, *sizes]).tolist()
        lot = _shared(island, max(starts[-1], 1))
        memory = torch.from_numpy(lot.bytes)
        found = [
            memory[start : start + t.numel() * t.element_size()].view(t.dtype).view(t.shape)
            for t, start in zip(tensors, starts, strict=False)
        ]
        self.tensors = found[: len(self._named)]
        self._others = dict(zip(others, found[len(self._named) :], strict=True))
        # Ranks that write: of equal copies the first one. Rank 0 has the first of all copies of plain tensors.
        self._writes = [_is_first(island, p) for _, p in trained]

    def put(self) -> None:
        """Write this rank's part of the trained parameters."""
        for (_, p), tensor, place, writes in zip(self._named, self.tensors, self.places, self._writes, strict=True):
            if writes:
                tensor[place].copy_(local(p))

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

    def norms(self) -> np.ndarray[Any, Any]:
        """Return the norms of this rank's copies, which identify their values."""
        of = [local(p) for (_, p), copy in zip(self._named, self.copies(), strict=True) if copy]
        norms = [torch.linalg.vector_norm(t, dtype=torch.float32).cpu() for t in of]
        return torch.stack(norms).numpy() if norms else np.zeros(0, np.float32)

    def refuse_other_norms(self, rank: int, places: Sequence[Any], norms: bytes, mine: dict[Any, Any]) -> None:
        """Raise UsageError if a copy of a rank differs from that of an earlier rank. mine: the norms so far."""
        names = [name for (name, _), copy in zip(self._named, self.copies(), strict=True) if copy]
        for name, place, norm in zip(names, places, np.frombuffer(norms, np.int32).tolist(), strict=True):
            first, known = mine.setdefault((name, str(place)), (rank, norm))
            if known != norm:
                raise UsageError(
                    f"{name} differs between rank {first} and rank {rank} of this island, so each of them trains a "
                    "model of its own; wrap the model in DistributedDataParallel or use fully_shard, and change no "
                    "weights on one rank alone"
                )


def _place_of(name: str, p: torch.Tensor) -> Place:
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


def _shared(island: Island, size: int) -> Lot:
    """Return memory that all ranks share."""
    lot = Lot(size, None if island.rank == 0 else island.receive_file())
    if island.rank == 0:
        island.send_file(lot.fd)
    lot.close_file()
    return lot


def _refuse_group(island: Island) -> None:
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


def _keeps(job: Job, weights: Callable[[], float] | None) -> bool:
    """Reports whether drafts are written on SIGTERM."""
    return not job._state_why and (weights is None or _is_stateful(weights))


class _Member(DiLoCo):
    """DiLoCo on a rank of an island."""

    _mirror: _Mirror

    def __init__(self, job: Job, model: nn.Module, inner: Any, **settings: Any) -> None:
        assert job._island is not None
        self._island: Island = job._island
        compiled = getattr(model, "_orig_mod", model)
        if isinstance(compiled, DistributedDataParallel):
            model = compiled.module
        if settings.get("overlap"):
            raise UsageError("overlap does not work in an island of several ranks; omit it")
        self._chosen = {
            name: settings.get(name) for name in ("sync_every", "mix", "compress", "compress_weights", "end")
        } | {
            "outer": repr(vars(rule)) if isinstance(rule := settings.get("outer"), Rule) else None,
            "weights": settings.get("weights") is not None,
        }
        super().__init__(job, model, inner, **settings)

    _rounds = 0  # outer steps that this rank has taken

    @staticmethod
    def _drafts_of(job: Job, weights: Callable[[], float] | None) -> Drafts:
        # Only on SIGTERM: otherwise the ranks would have to agree on a step now and then.
        leads = job._island is not None and job._island.rank == 0
        return Drafts(None, job.slot, Stored(job) if leads and _keeps(job, weights) else None)

    def _new_notice(self) -> Notice | None:
        if not _keeps(self.job, self._weights):
            return None
        return IslandNotice(
            self._weights_now,
            self._buffers_now,
            self._write_drafts,
            links=self._island.more_links(),
            leads=self._island.rank == 0,
            position=lambda: (self._rounds, self._steps),
            encode=self._part,
            prepare=self._drafts.prepare,
        )

    def _part(self, kept: dict[str, Any], buffers: Sequence[torch.Tensor]) -> _state.Encoded:
        """Return this rank's part of a draft. Ranks with a plain model have equal weights and optimizers."""
        return _state.Encoded({"draft": self._drafted_from(kept, buffers)} if self._sharded else {"draft": kept})

    def _write_drafts(self, kept: Any, buffers: Sequence[torch.Tensor], parts: list[_state.Later]) -> None:
        """Write a draft with the parts of the other ranks."""
        self._refuse_incs()
        self._drafts.write_last(self._drafted_from(kept, buffers) | {"ranks": parts})

    def _own(self) -> list[torch.Tensor]:
        return [*(local(p) for p in self._trained), *self._buffers_now()]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        yield  # it changes the mirror

    def _take_mirror(self) -> None:
        """Set this rank's part of the model to the result of an outer step."""
        with DiLoCo._changing(self):
            self._mirror.take()
            self._rounds += 1

    def _refuse_group(self, job: Job, model: nn.Module) -> None:
        if self._island.size > 1:
            _refuse_group(self._island)

    def _mirrored(self, job: Job, of: Sequence[tuple[str, nn.Parameter]]) -> list[torch.Tensor]:
        frozen = Frozen(self.model)
        handed = {id(p) for p in frozen.handed}
        small = {name: p for name, p in named_parameters(self.model) if id(p) in handed}

        def copied() -> dict[str, torch.Tensor]:
            return _buffers_of(self.model)

        named = [*of, *copied().items(), *small.items()]
        self._island.agree(
            {
                **self._chosen,
                "tensors": [[name, str(t.dtype).removeprefix("torch."), *t.shape] for name, t in named],
                "optimizers": [type(o).__name__ for o in self._inner.optimizers],
                "objects in state": [type(o).__name__ for o in self._state],
                "a sharded model:": [is_sharded(p) for _, p in of],
            }
        )
        self._sharded = any(is_sharded(p) for _, p in of)
        self._mirror = _Mirror(self._island, of, copied, small)
        return self._mirror.tensors

    def _states(self) -> list[Any]:
        states = super()._states()
        for of, state in zip(self._state, states, strict=True):
            if isinstance(of, Optimizer):
                _refuse_other_layouts(of)
            elif not is_loader(of) and any(is_sharded(t) for t in _tensors_of(state)):
                raise UsageError(
                    f"state={type(of).__name__} contains DTensors, which are restored in optimizers only; keep plain "
                    "tensors in it"
                )
        return states

    def _take_shared(self) -> None:
        self._mirror.take()

    def _changed(self) -> Iterator[str]:
        return self._mirror.changed()


class _Leader(_Member):
    """DiLoCo on rank 0 of an island."""

    def _begin(self) -> None:
        island = self._island
        self._saved_by: list[bytes] = []
        self._found: dict[str, Any] | None = None
        self._loaded = False  # whether the slot has saved a state
        with island.failing():
            self._mirror.put()
            places = [
                [[s.start, s.stop] for s in place]
                for place, copy in zip(self._mirror.places, self._mirror.copies(), strict=True)
                if copy
            ]
            self._copies = [places]
            mine: dict[Any, Any] = {}
            self._mirror.refuse_other_norms(0, places, self._mirror.norms().tobytes(), mine)
            for rank, (said, norms) in enumerate(island.gather("begin"), 1):
                self._copies.append(said["places"])
                self._mirror.refuse_other_norms(rank, said["places"], bytes(norms), mine)
            with self._stepping():
                super()._begin()
            self._mirror.put_others()
        shared = b"" if self._sharded else self._optimizers()
        if self._found is not None:
            self._saved_by = self._found["ranks"]
            shared = b"" if self._sharded else _encoded({name: self._found[name] for name in ("tensors", "state")})
        for rank in range(1, island.size):
            state = self._saved_by[rank - 1] if self._saved_by else b""
            said = {"now": island.now, "over": self._over, "state": len(state), "loaded": self._loaded}
            said["drafted"] = self._found is not None
            island.tell_rank(rank, said, state + (shared if self._saved_by else b""))
        self._saved_by = []
        self._finish_step()
        if self._found is not None:
            super()._continue(self._found)
            self._found = None

    def _optimizers(self) -> bytes:
        """Return the encoded states of the optimizers, which all ranks with a plain model have in common."""
        return _encoded([of.state_dict() for of in self._inner.optimizers])

    def _restore(self, kept: dict[str, Any]) -> None:
        super()._restore(kept)
        self._saved_by = kept.get("ranks", [])
        self._loaded = True

    def _continue(self, draft: dict[str, Any]) -> None:
        self._found = draft  # until the ranks have taken the shared weights

    @contextlib.contextmanager
    def _stepping(self) -> Iterator[None]:
        """Allow rank 0 to end clocks. The block's end sets the clock of the ranks."""
        self._island.now = None
        yield
        self._island.now = self.job._now()

    def _finish_step(self) -> None:
        """Take the result of an outer step, and wait until the followers have taken it."""
        self._take_mirror()
        with self._island.failing():
            self._island.gather("taken")

    def _kept(self, states: list[Any]) -> dict[str, Any]:
        ranks = [_state.Later(size, self._island.part(rank)) for rank, size in enumerate(self._sizes, 1)]
        return super()._kept(states) | ({"ranks": ranks} if ranks else {})

    def _exchange(self, weight: float | None) -> None:
        island = self._island
        with island.failing():
            self._mirror.put()
            said = island.gather("step")
            mine: dict[Any, Any] = {}
            self._mirror.refuse_other_norms(0, self._copies[0], self._mirror.norms().tobytes(), mine)
            for rank, (_, norms) in enumerate(said, 1):
                self._mirror.refuse_other_norms(rank, self._copies[rank], bytes(norms), mine)
            self._sizes = [message["state"] for message, _ in said]
            if weight is not None:
                weight += math.fsum(message["weight"] for message, _ in said)
            with self._stepping():
                super()._exchange(weight)
            self._mirror.put_others()
        island.tell({"now": island.now})
        self._finish_step()

    def _finish_slot(self) -> None:
        island = self._island
        with island.failing():
            island.gather("finish")
            with self._stepping():
                super()._finish_slot()
            self._mirror.put_others()
        island.tell({"now": island.now})
        self._finish_step()


class _Follower(_Member):
    """DiLoCo on another rank of an island. Rank 0 holds the tables and makes the outer steps."""

    def _create_tables(self, rows: Sequence[tuple[_Rows, Rule]], combine: str, means: _Rows | None) -> None:
        pass

    def _begin(self) -> None:
        self._mirror.put()
        places = [
            [[s.start, s.stop] for s in place]
            for place, copy in zip(self._mirror.places, self._mirror.copies(), strict=True)
            if copy
        ]
        self._island.report("begin", {"places": places}, self._mirror.norms().tobytes())
        said, payload = self._island.wait_for_more()
        self._finish_step(said)
        self._over = said["over"]
        if said["loaded"] and not said["drafted"]:
            own = _state.decode(memoryview(payload)[: said["state"]])
            states = own["state"]
            if not self._sharded:
                of = iter(_state.decode(memoryview(payload)[said["state"] :]))
                states = [next(of) if state is None else state for state in states]
            for of_state, state in zip(self._state, states, strict=True):
                load(of_state, state)
            self._loaders.loaded()
            _set_random(own["random"])
            self._taken_over = True
        if self._sampler is not None:
            self._sampler._resume(loaded=said["loaded"])
        self._where = ""
        if said["drafted"]:
            self._loaders.loaded()
            self._continue(self._draft_of(memoryview(payload), said["state"]))

    def _draft_of(self, payload: memoryview, size: int) -> dict[str, Any]:
        """Return this rank's draft. With a plain model the weights and optimizers are those of rank 0."""
        draft: dict[str, Any] = _state.decode(payload[:size])["draft"]
        if not self._sharded:
            shared = _state.decode(payload[size:])
            of = zip(self._state, draft["state"], shared["state"], strict=True)
            draft["state"] = [theirs if isinstance(o, Optimizer) else own for o, own, theirs in of]
            draft["tensors"] = shared["tensors"]
        return draft

    def _origin(self) -> str:
        return ""  # rank 0 knows it

    def _finish_step(self, said: dict[str, Any]) -> None:
        """Take the result of an outer step."""
        self._take_mirror()
        self._island.now = _Now.of(said["now"])
        self._island.report("taken")

    def _exchange(self, weight: float | None) -> None:
        self._refuse_half()
        self._refuse_changes()
        states = self._states()
        inner = [any(of is optimizer for optimizer in self._inner.optimizers) for of in self._state]
        sent = [None if is_inner and not self._sharded else s for is_inner, s in zip(inner, states, strict=True)]
        encoded = _state.Encoded({"state": sent, "random": _random()})
        self._mirror.put()
        before = self._island.now
        self._half = True
        self._island.report("step", {"state": encoded.size, "weight": weight}, self._mirror.norms().tobytes())
        said = self._island.wait(encoded.read)
        self._late.saved(states)
        self._finish_step(said)
        self._half = False
        if self._sampler is not None:
            self._sampler._after_clock(self._island.now != before)

    def _finish_slot(self) -> None:
        self._island.report("finish")
        self._finish_step(self._island.wait())
        self.job._finished = True

    def export(self, path: Any, *, partial: bool = False) -> None:
        """Do nothing: rank 0 writes the file."""

    def _report_waited(self) -> None:
        """Do nothing: rank 0 reports the island's time."""


def _encoded(state: Any) -> bytes:
    encoded = _state.Encoded(state)
    room = np.empty(encoded.size, np.uint8)
    encoded.write(room)
    return room.tobytes()


def _refuse_other_layouts(of: Optimizer) -> None:
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


def _tensors_of(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for of in state.values():
            yield from _tensors_of(of)
    elif isinstance(state, (list, tuple)):
        for of in state:
            yield from _tensors_of(of)


def class_of(island: Island) -> type[DiLoCo]:
    """Return the class of ``DiLoCo`` for a rank of an island."""
    return _Leader if island.rank == 0 else _Follower
