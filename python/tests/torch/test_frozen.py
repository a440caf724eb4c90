"""Frozen parameters and buffers are the same in all processes, and updates start from the learner's own weights."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SMALL, Cluster
from launched import Death, lives
from test_refused import refuses, second

import perdure

torch = pytest.importorskip("torch")
nn = torch.nn


def half_frozen(*, seed: int | None = None) -> Any:
    if seed is not None:
        torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize("how", ["parallel", "diloco"])
def test_frozen_weights_are_handed_on(tmp_path: Path, how: str) -> None:
    first: list[Any] = []

    def life(job: perdure.Job, number: int) -> None:
        model = half_frozen(seed=number)
        model.register_buffer("mask", torch.full((2,), float(number)), persistent=False)
        frozen = model[0].bfloat16() if how == "diloco" else model[0]
        inner = torch.optim.SGD(model[1].parameters(), 0.1)
        if how == "parallel":
            perdure.ServerOptimizer(job, model, perdure.SGD(0.1))
        else:
            perdure.DiLoCo(job, model, inner)
        first.append([v.clone() for v in [*frozen.parameters(), model.mask]])
        if number == 0:
            raise Death
        job.finish()

    lives(tmp_path, life, 1)
    assert all(a.equal(b) for a, b in zip(*first, strict=True))


def test_large_frozen_weights_are_compared(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure._frozen.HANDED", 0)
    said = second(cluster, half_frozen(seed=0), half_frozen(seed=1))
    assert said.startswith("the frozen parameter 0.weight has the checksum ")
    assert said.endswith("load them from the same file, or call torch.manual_seed before creating the model")


def test_checksums() -> None:
    from perdure._frozen import checksum

    class Two(torch.Tensor):
        """A tensor subclass that consists of two tensors."""

        @staticmethod
        def __new__(cls, *of: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, of[0].shape, dtype=torch.float32)

        def __init__(self, codes: Any, scale: Any) -> None:
            self.codes, self.scale = codes, scale

        @classmethod
        def __torch_dispatch__(cls, *_: Any) -> Any:
            raise AssertionError

        def __tensor_flatten__(self) -> Any:
            return ["codes", "scale"], None

    codes = torch.arange(4, dtype=torch.int8)
    assert checksum(Two(codes, torch.ones(1))) == checksum(Two(codes.clone(), torch.ones(1)))
    assert checksum(Two(codes, torch.ones(1))) != checksum(Two(codes, torch.zeros(1)))
    assert checksum(nn.Parameter(torch.ones(3))) == checksum(torch.ones(3))


def test_frozen_weights_that_change(tmp_path: Path) -> None:
    model = half_frozen()
    inner = torch.optim.SGD(model[1].parameters(), 0.1)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        perdure.DiLoCo(job, model, inner)
        for change in (False, True):
            if change:
                with torch.no_grad():
                    model[0].bias.mul_(0.5)
            model(torch.ones(1, 4)).sum().backward()
            if not change:
                inner.step()
                continue
            with refuses("0.bias is frozen"):
                inner.step()


def test_a_teacher_in_the_state_may_change(tmp_path: Path) -> None:
    model = half_frozen()
    teacher = nn.Sequential(model[0])  # iterable, like a loader
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        p = perdure.ServerOptimizer(job, model, perdure.SGD(0.1), state=[teacher])
        for _ in range(3):
            model(torch.ones(1, 4)).sum().backward()
            with torch.no_grad():
                model[0].bias.mul_(0.5)
            p.step()
        p.finish()


def test_buffers_that_are_assigned(tmp_path: Path) -> None:
    class Model(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 1)
            self.register_buffer("count", torch.zeros(1))
            self.register_buffer("table", torch.zeros(1), persistent=False)

        def forward(self, x: Any) -> Any:
            self.count = self.count + 1  # assigns a new tensor
            self.table = torch.zeros(len(self.table) + 1)
            return super().forward(x)

    def life(job: perdure.Job, number: int) -> float:
        model = Model()
        p = perdure.ServerOptimizer(job, model, perdure.SGD(0.1))
        for _ in range(3):
            model(torch.ones(1, 4)).sum().backward()
            p.step()
        if number == 0:
            raise Death
        model.count = torch.zeros(2)
        with refuses("the buffer count has changed its shape"):
            p.step()
        return float(p._buffers.tensors[0])  # type: ignore[union-attr]

    assert lives(tmp_path, life, 1) == 6


def test_an_idle_learner_sends_nothing(tmp_path: Path) -> None:
    """A learner that does not change its weights sends zeros, although bfloat16 rounds the servers' weights."""
    torch.manual_seed(0)
    model = nn.Linear(64, 8).bfloat16()
    inner = torch.optim.SGD(model.parameters(), 1.0)
    sent: list[float] = []

    class Watched(perdure.DiLoCo):
        def _write(self, g: Any, source: Any, i: int, place: Any) -> None:
            super()._write(g, source, i, place)
            sent.append(float(place.abs().max()))

    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        with Watched(job, model, inner, sync_every=1, outer=perdure.SGD(0.3)) as d:
            for step in range(6):
                for p in model.parameters():
                    p.grad = torch.full_like(p, 0.01 if step < 3 else 0.0)
                inner.step()
            weights = d._groups[0].weights
        assert weights is not None
        assert not np.array_equal(weights, torch.from_numpy(weights).bfloat16().float().numpy())
    assert min(sent[:6]) > 0
    assert sent[6:] == [0.0] * 6


def test_names_of_a_compiled_model(cluster: Cluster) -> None:
    """A compiled model has the same names as the original, so slots may differ in whether they compile it."""
    from perdure._frozen import named_parameters

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    plain = [name for name, _ in named_parameters(model)]
    model[0] = torch.compile(model[0], backend="eager")
    assert [name for name, _ in named_parameters(torch.compile(model, backend="eager"))] == plain


def test_parts_of_a_distributed_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(4, 2)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        with monkeypatch.context() as patch:
            patch.setattr(torch.distributed, "is_initialized", lambda: True)
            patch.setattr(torch.distributed, "get_world_size", lambda: 2)
            with refuses("this process is one of 2 in a torch.distributed group"):
                perdure.ServerOptimizer(job, model, perdure.SGD(0.1))
        model.weight.placements, model.weight.device_mesh = (), None
        with refuses("weight is a DTensor"):
            perdure.ServerOptimizer(job, model, perdure.SGD(0.1))
        assert job.now == 0


def test_ranks_in_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several ranks in one slot, for example by torchrun, are rejected. In a group over the slots, rank equals slot."""
    monkeypatch.setenv("PERDURE_SLOT", "0")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    for rank, said in ((1, "this process is rank 1 of a torch.distributed group of 2 in slot 0"), (0, "secret")):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        with pytest.raises(perdure.PerdureError, match=said):
            perdure.join("nothing.there:1", "/none", patience=0.1)


def test_finish_lets_go(tmp_path: Path) -> None:
    """Neither hooks nor the job keep the model alive, and after the end the optimizer steps again."""
    model = nn.Linear(1, 1)
    inner = torch.optim.SGD(model.parameters(), 0.1)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        p = perdure.ServerOptimizer(job, model, inner)
        model(torch.ones(1, 1)).backward()
        p.step()
        with refuses("call ServerOptimizer.step"):
            inner.step()
        p.finish()
        inner.step()
        weight = weakref.ref(model.weight)
        del p, model, inner
        gc.collect()
        assert weight() is None
