"""Copies of tensors from any device to this process's memory. Some tests need a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("torch")

import torch

from perdure._pinned import Pinned

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


class Far(Pinned):
    """Treats tensors of this process as if they were on a GPU, and counts operations on them."""

    def __init__(self) -> None:
        super().__init__()
        self.allocated: list[int] = []
        self.waits: list[int] = []

    def _is_away(self, tensor: torch.Tensor) -> bool:
        return tensor.dtype != torch.int64  # int64 tensors count as local ones

    def _allocate(self, count: int) -> torch.Tensor:
        self.allocated.append(count)
        return torch.full((count,), float("nan"))

    def wait_for(self, tensors: Sequence[torch.Tensor]) -> None:
        self.waits.append(len(tensors))


def tensors_of(device: str) -> list[torch.Tensor | None]:
    """Return tensors of all kinds: types, shapes, non-contiguous ones, parameters and None."""
    g = torch.Generator().manual_seed(5)
    kinds: list[torch.Tensor | None] = [
        torch.randn(7, 3, generator=g),
        None,
        torch.randn(4, 5, generator=g).t(),
        torch.randn(6, generator=g).to(torch.bfloat16),
        torch.randn(2, 2, 2, generator=g).to(torch.float16),
        torch.randn(9, generator=g, dtype=torch.float64)[::2],
        torch.tensor(2.5),
        torch.empty(0),
        torch.tensor([1, 2**24 + 1]),
        torch.randn(3, 4, generator=g).requires_grad_(),
        torch.tensor([float("nan"), float("inf"), -0.0]),
    ]
    return [t if t is None else t.detach().to(device).requires_grad_(t.requires_grad) for t in kinds]


def check(pinned: Pinned, device: str) -> None:
    tensors = tensors_of(device)
    here = pinned.here(tensors)
    assert len(here) == len(tensors)
    for given, got in zip(tensors, here, strict=True):
        assert (given is None) == (got is None)
        if given is None or got is None:
            continue
        assert (got.dtype, got.device.type, got.requires_grad, got.shape) == (torch.float32, "cpu", False, given.shape)
        want = given.detach().cpu().to(torch.float32).reshape(-1).numpy()
        assert got.reshape(-1).numpy().tobytes() == want.tobytes()


def test_here_already() -> None:
    pinned = Pinned()
    check(pinned, "cpu")
    assert pinned._buffer.numel() == 0
    tensor = torch.randn(3, requires_grad=True)
    (here,) = pinned.here([tensor])
    assert here is not None
    assert here.data_ptr() == tensor.data_ptr()  # not copied
    assert pinned.here([]) == []
    assert pinned.here([None]) == [None]


def test_far_away() -> None:
    far = Far()
    check(far, "cpu")
    count = sum(t.numel() for t in tensors_of("cpu") if t is not None) - 2
    assert far.allocated == [count]  # the buffer is reused
    assert far.waits == [9]  # one wait for all tensors
    for n in (count - 1, count, count + 1):
        (here,) = far.here([torch.ones(n)])
        assert here is not None
        assert (here == 1).all()
    assert far.allocated == [count, count + 1]
    first, second = far.here([torch.ones(4), torch.zeros(4)])
    assert first is not None
    assert second is not None
    assert (first == 1).all()  # the copies do not overlap
    assert (second == 0).all()


@needs_gpu
def test_gpu() -> None:
    pinned = Pinned()
    check(pinned, "cuda")
    assert pinned._buffer.is_pinned()
    check(pinned, "cpu")


@needs_gpu
def test_of_both() -> None:
    pinned = Pinned()
    near, far = torch.ones(3), torch.full((2,), 2.0, device="cuda")
    here = pinned.here([far, near, far])
    assert [t.tolist() for t in here if t is not None] == [[2, 2], [1, 1, 1], [2, 2]]


@needs_gpu
def test_what_is_being_computed() -> None:
    """A copy waits for work queued earlier, including work on the current stream."""
    pinned = Pinned()
    n = 1 << 22
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            x = torch.zeros(n, device="cuda")
            for _ in range(200):
                x += 1
            (here,) = pinned.here([x])
            x.zero_()
            assert here is not None
            assert (here == 200).all()


@needs_gpu
def test_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.ones(1000, device="cuda") for _ in range(50)]
    pinned = Pinned()
    pinned.here(tensors)  # allocates the buffer
    waits = []
    wait = torch.cuda.Stream.synchronize

    def counted(of: torch.cuda.Stream) -> None:
        torch.cuda.set_sync_debug_mode("default")
        waits.append(of)
        wait(of)

    monkeypatch.setattr(torch.cuda.Stream, "synchronize", counted)
    torch.cuda.set_sync_debug_mode("error")  # any other wait raises
    try:
        pinned.here(tensors)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(waits) == 1
