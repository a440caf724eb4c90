"""DataParallel in an island: rank 0 exchanges the gradients, and the ranks share a mirror of them.

docs/design/islands.md describes the protocol.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from . import _state
from ._island import Island
from ._local import is_sharded
from ._mirror import PARTS, Mirror, bytes_of, mirror_of, refuse_group, refuse_other_layouts, tensors_of
from ._parallel import _CHECKED, DataParallel, _Pass
from ._pieces import Pieces
from .errors import Done, UsageError
from .job import Job, Share, _Now


class _Member(DataParallel):
    """DataParallel on a rank of an island."""

    _mirror: Mirror

    def __init__(self, job: Job, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], **settings: Any) -> None:
        assert job._island is not None
        self._island: Island = job._island
        if settings.get("copy"):
            raise UsageError(
                "copy=True does not work in an island of several ranks, whose replacement returns to the newest "
                "checkpoint; omit it"
            )
        compiled = getattr(model, "_orig_mod", model)
        self._replicas = compiled if isinstance(compiled, DistributedDataParallel) else None
        self._waits = False  # whether the end of the backward pass waits for the collectives of the island
        if self._replicas is not None:
            model = self._replicas.module
        super().__init__(job, model, optimizer, **settings | {"copy": False})

    def _refuse_group(self, job: Job, model: nn.Module) -> None:
        if self._island.size > 1:
            refuse_group(self._island)

    def _mirrored(self, of: Sequence[tuple[str, nn.Parameter]]) -> list[torch.Tensor]:
        settings = {
            "optimizers": [type(o).__name__ for o in self._optimizers],
            "objects in shared": [type(o).__name__ for o in self._shared],
            "objects in state": [type(o).__name__ for o in self._state],
        }
        self._mirror = mirror_of(self._island, self.model, of, settings, self.job)
        self._sharded = self._mirror.sharded
        return self._mirror.tensors

    def _settings(self) -> dict[str, Any]:
        return {"fully_shard": True} if self._sharded else {}  # a saved state of shards fits no other slot

    def _join(self, clock: int) -> None:
        raise UsageError(
            f"slot {self.job.slot} has joined at clock {clock}, but islands of several ranks cannot join a job that "
            "trains with DataParallel; run `perdure scale` with the former number"
        )

    def _take_share(self, share: Share) -> None:
        if share != self._share:
            raise UsageError(
                f"the job now has {share.of} slots instead of {self._share.of}, but with islands of several ranks "
                f"their number cannot change under DataParallel: run `perdure scale {self._share.of}`"
            )

    def _saves_whole(self, now: _Now) -> bool:
        return now.saver >= 0 if self._sharded else super()._saves_whole(now)

    def _captured_own(self, over: bool = False) -> dict[str, Any]:
        own = super()._captured_own(over)
        for of, state in zip(self._state, own["state"], strict=True):
            if any(is_sharded(t) for t in tensors_of(state)):
                raise UsageError(
                    f"state={type(of).__name__} contains DTensors, which are restored in optimizers only; keep plain "
                    "tensors in it"
                )
        for optimizer in self._optimizers:
            refuse_other_layouts(optimizer)
        return own

    def _save_kept(self) -> None:
        """Do nothing: the exchange saves the states of all ranks."""

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Do not synchronise backward passes, neither with the other ranks nor with the other slots."""
        shards = [of for of in self.model.modules() if isinstance(of, FSDPModule)]
        with super().no_sync(), contextlib.nullcontext() if self._replicas is None else self._replicas.no_sync():
            for of in shards:
                of.set_requires_gradient_sync(False, recurse=False)
            try:
                yield
            finally:
                for of in shards:
                    of.set_requires_gradient_sync(True, recurse=False)

    def _gradient_ready(self, i: int) -> None:
        self._ready.add(i)  # of this rank alone, so it cannot be sent yet
        if self._pass is not None:
            self._pass.ran = True

    def _end_backward(self) -> None:
        # DDP and FSDP also finish in such callbacks, which they have queued by now.
        self._waits = not self._waits
        if self._waits:
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        else:
            super()._end_backward()

    def _norms(self) -> bytes:
        """Return the norms of this rank's copies of the gradients and the parameters.

        They cover all rows of the gradients in the first steps of a process. Later parts of the rows take turns.
        """
        turn = self._count % PARTS
        gradients = self._mirror.norms(gradients=True, turn=None if self._made <= _CHECKED else turn)
        return gradients + self._mirror.norms(turn=turn)

    def _cut_off(self) -> Done:
        self._mirror.take_others()  # the buffers at the start of the step
        return super()._cut_off()


class _Leader(_Member):
    """DataParallel on rank 0 of an island."""

    _sizes: Sequence[int] = ()  # of the states that the followers save
    _bits = 0  # the followers' part of the sum of weights
    _last: _Now  # when the means were read
    _means: tuple[set[int], float] = (set(), 1.0)  # the numbers of the parameters that have one; the total weight

    def _begin(self) -> None:
        island = self._island
        self._found: dict[str, Any] | None = None
        with island.failing():
            self._mirror.put()
            others = island.gather("begin")
            self._places_of_copies = [self._mirror.places_of_copies(), *(said["places"] for said, _ in others)]
            self._mirror.compare(self._places_of_copies, [self._mirror.norms(), *(norms for _, norms in others)])
            with self._island.stepping(self.job._now):
                super()._begin()
            self._mirror.put_others()
            found, shared = self._found, b""
            if found is not None and not self._sharded:
                shared = bytes_of({"shared": self._shared_state(), "buffers": self._buffers_now()})
        for rank in range(1, island.size):
            own = b"" if found is None else found["ranks"][rank - 1]
            island.tell_rank(rank, {"now": island.now, "own": len(own)}, own + shared)
        if found is None:
            self._mirror.take_weights()
        self._found = None

    def _new_pieces(self) -> Pieces:
        return Pieces(self.job, self._rows, self._mirror.rows)

    def _take_weights(self) -> None:
        for _ in self._pieces.read(self._gradients, self._share):
            pass  # they are in the mirror, from which all ranks take them

    def _load(self, kept: dict[str, Any], newest: bool) -> None:
        super()._load(kept, newest)
        self._found = kept

    def _at_mark(self) -> _Now:
        island = self._island
        with island.failing():
            island.now = None
            now = super()._at_mark()
            island.now = now
        island.tell({"now": now, "over": self._over})
        return now

    def _encoded(self, state: dict[str, Any]) -> Any:
        return state  # _store adds the followers' states

    def _store(self, kept: dict[str, Any]) -> None:
        ranks = [_state.Later(size, self._island.part(rank)) for rank, size in enumerate(self._sizes, 1)]
        self.job._save(_state.Encoded(kept | ({"ranks": ranks} if ranks else {})))

    def _exchange(self, each: _Pass) -> None:
        island = self._island
        with island.failing():
            said = island.gather("pass")
            for i in self._ready:
                self._gradient(i)
            self._compare([self._norms(), *(norms for _, norms in said)])
            self._mirror.put_gradients(self._ready)
            self._ready.update(*(message["ready"] for message, _ in said))
            self._bits = sum(message["bits"] for message, _ in said)
            self._sizes = [message["state"] for message, _ in said]
            kept, self._kept = self._kept, None
            if kept is not None:
                self._store(kept)
            island.now = None  # until all ranks get the clock with the means
            super()._exchange(each)

    def _compare(self, norms: Sequence[bytes | bytearray]) -> None:
        """Raise UsageError if copies of a gradient or of a parameter differ between ranks. norms: of each rank."""
        half = len(norms[0]) // 2
        for of, what in ((slice(half), "the gradient of "), (slice(half, None), "")):
            self._mirror.compare(self._places_of_copies, [own[of] for own in norms], what)

    def _whole_gradient(self, i: int) -> torch.Tensor:
        p = self._parameters[i]
        if is_sharded(p):
            return self._mirror.tensors[i]
        if p.grad is None:
            raise UsageError(
                f"another rank of this island has a gradient of {self._names[i]}, but rank 0 has none: wrap the model "
                "in DistributedDataParallel"
            )
        return self._gradient(i)

    def _sum_of_weights(self) -> int:
        return self._mirror.bits(self._count % PARTS) + self._bits

    def _read_means(self, has: set[int], total: float) -> set[int]:
        """Read the sums into the mirror, from which each rank takes the means of its part."""
        self._means = (has, total)
        pieces = self._pieces.read(self._gradients, self._share)
        return set().union(*(self._not_finite(has, first, values) for first, values in pieces))

    def _refuse_older_means(self) -> _Now:
        self._last = super()._refuse_older_means()
        return self._last

    def _take_means(self) -> None:
        island = self._island
        with island.failing():
            island.now = None
            super()._take_means()
            self._mirror.put_others()
            island.now = self._last
        has, total = self._means
        island.tell({"now": island.now, "has": sorted(has), "total": total, "poisoned": self._poisoned})
        self._mirror.take_means(has, total)

    def finish(self) -> None:
        """End this slot's work and wait for all slots. All ranks must call it."""
        island = self._island
        with island.failing():
            self._sizes = [message["state"] for message, _ in island.gather("finish")]
            with self._island.stepping(self.job._now):
                super().finish()
        island.tell({"now": island.now})

    def export(self, path: str | os.PathLike[str], *, partial: bool = False) -> None:
        """Write the model in the safetensors format. All ranks must call it, and rank 0 writes the file."""
        with self._island.failing():
            self._island.gather("export")  # from here on no rank reads the means in the mirror
            self._island.tell({})
            self._mirror.put()
            self._island.gather("export")
            mine, self._parameters = self._parameters, self._mirror.tensors
            try:
                super().export(path, partial=partial)
            finally:
                self._parameters = mine
        self._island.tell({})


class _Follower(_Member):
    """DataParallel on another rank of an island. Rank 0 holds the tables and exchanges the gradients."""

    _sent: _state.Encoded | None = None  # the state that rank 0 reads in this step

    def _tables(self, job: Job) -> None:
        self._buffers = None  # those of rank 0 are in the mirror

    def _begin(self) -> None:
        self._mirror.put()
        self._island.report("begin", {"places": self._mirror.places_of_copies()}, self._mirror.norms())
        said, payload = self._island.wait_for_more()
        self._island.now = _Now.of(said["now"])
        if not said["own"]:
            self._mirror.take_weights()
            return
        own = _state.decode(memoryview(payload)[: said["own"]])
        self._load(own if self._sharded else own | _state.decode(memoryview(payload)[said["own"] :]), newest=True)
        self._mirror.take_others()

    def _at_mark(self) -> _Now:
        said = self._island.wait()
        now = self._island.now = _Now.of(said["now"])
        self._over = said["over"]
        return now

    def _captured(self, over: bool = False) -> dict[str, Any]:
        return super()._captured(over) if self._sharded else {"own": self._captured_own(over)}

    def _exchange(self, each: _Pass) -> None:
        for i in self._ready:
            self._gradient(i)
        self._mirror.put_gradients(self._ready)
        self._sent, self._kept = self._kept, None
        said = {
            "ready": sorted(self._ready),
            "bits": self._mirror.bits(self._count % PARTS),
            "state": 0 if self._sent is None else self._sent.size,
        }
        self._island.report("pass", said, self._norms())

    def _take_means(self) -> None:
        sent, self._sent = self._sent, None
        try:
            said = self._island.wait(None if sent is None else sent.read)
        except Done:
            raise self._cut_off() from None
        self._island.now = _Now.of(said["now"])
        if self._sampler is not None and not self._repeats:
            self._sampler._after_clock(advanced=True)
        self._mirror.take_means(set(said["has"]), said["total"])
        self._mirror.take_others()
        self._poisoned = said["poisoned"]

    def finish(self) -> None:
        """End this slot's work and wait for all slots. All ranks must call it."""
        state = _state.Encoded(self._captured(over=True))
        self._island.report("finish", {"state": state.size})
        self._island.now = _Now.of(self._island.wait(state.read)["now"])
        self.job._finished = True
        self._let_go()

    def export(self, path: str | os.PathLike[str], *, partial: bool = False) -> None:
        """Give rank 0 this rank's part of the model. Rank 0 writes the file."""
        self._island.report("export")
        self._island.wait()
        self._mirror.put()
        self._island.report("export")
        self._island.wait()


def class_of(island: Island) -> type[DataParallel]:
    """Return the class of ``DataParallel`` for a rank of an island."""
    return _Leader if island.rank == 0 else _Follower
