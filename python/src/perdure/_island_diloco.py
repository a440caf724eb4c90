"""DiLoCo in an island: rank 0 makes the outer steps, and the ranks share a mirror of the model.

docs/design/islands.md describes the protocol.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from . import _state
from ._draft import Drafts, Stored
from ._inner import load
from ._island import Island
from ._island_notice import IslandNotice
from ._late import is_loader
from ._local import is_sharded, local
from ._mirror import Mirror, bytes_of, mirror_of, refuse_group, refuse_other_layouts, tensors_of
from ._notice import Notice
from .errors import UsageError
from .job import Job, _Now
from .rules import Rule
from .torch import DiLoCo, _is_stateful, _random, _Rows, _set_random


def _keeps(job: Job, weights: Callable[[], float] | None) -> bool:
    """Reports whether drafts are written on SIGTERM."""
    return not job._state_why and (weights is None or _is_stateful(weights))


class _Member(DiLoCo):
    """DiLoCo on a rank of an island."""

    _mirror: Mirror

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
            refuse_group(self._island)

    def _mirrored(self, job: Job, of: Sequence[tuple[str, nn.Parameter]]) -> list[torch.Tensor]:
        self._mirror = mirror_of(
            self._island,
            self.model,
            of,
            self._chosen
            | {
                "optimizers": [type(o).__name__ for o in self._inner.optimizers],
                "objects in state": [type(o).__name__ for o in self._state],
            },
        )
        self._sharded = self._mirror.sharded
        return self._mirror.tensors

    def _states(self) -> list[Any]:
        states = super()._states()
        for of, state in zip(self._state, states, strict=True):
            if isinstance(of, Optimizer):
                refuse_other_layouts(of)
            elif not is_loader(of) and any(is_sharded(t) for t in tensors_of(state)):
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
            others = island.gather("begin")
            self._copies = [self._mirror.places_of_copies(), *(said["places"] for said, _ in others)]
            self._mirror.compare(self._copies, [self._mirror.norms(), *(norms for _, norms in others)])
            with self._island.stepping(self.job._now):
                super()._begin()
            self._mirror.put_others()
        shared = b"" if self._sharded else self._optimizers()
        if self._found is not None:
            self._saved_by = self._found["ranks"]
            shared = b"" if self._sharded else bytes_of({name: self._found[name] for name in ("tensors", "state")})
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
        return bytes_of([of.state_dict() for of in self._inner.optimizers])

    def _restore(self, kept: dict[str, Any]) -> None:
        super()._restore(kept)
        self._saved_by = kept.get("ranks", [])
        self._loaded = True

    def _continue(self, draft: dict[str, Any]) -> None:
        self._found = draft  # until the ranks have taken the shared weights

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
            self._mirror.compare(self._copies, [self._mirror.norms(), *(norms for _, norms in said)])
            self._sizes = [message["state"] for message, _ in said]
            if weight is not None:
                weight += math.fsum(message["weight"] for message, _ in said)
            with self._island.stepping(self.job._now):
                super()._exchange(weight)
            self._mirror.put_others()
        island.tell({"now": island.now})
        self._finish_step()

    def _finish_slot(self) -> None:
        island = self._island
        with island.failing():
            island.gather("finish")
            with self._island.stepping(self.job._now):
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
        self._island.report("begin", {"places": self._mirror.places_of_copies()}, self._mirror.norms())
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
        self._island.report("step", {"state": encoded.size, "weight": weight}, self._mirror.norms())
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


def class_of(island: Island) -> type[DiLoCo]:
    """Return the class of ``DiLoCo`` for a rank of an island."""
    return _Leader if island.rank == 0 else _Follower
