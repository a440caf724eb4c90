"""What DataParallel's exchange adds to a process's memory, and the pieces in which it reads the means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import SMALL, Cluster

import perdure
from perdure import _pieces
from perdure.job import Share

torch = pytest.importorskip("torch")
nn = torch.nn


def values_of(table: perdure.Table, pieces: _pieces.Pieces, share: Share) -> list[tuple[int, list[float]]]:
    return [(first, values.tolist()) for first, values in pieces.read(table, share)]


def test_every_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slots read all rows, each slot from another piece on. No piece is much smaller than the others."""
    monkeypatch.setattr(_pieces, "PIECE", 3 * 4096)
    with perdure.start(servers=1, out=tmp_path / "run", args=SMALL) as job:
        tensors = [("a", torch.zeros(70, 100)), ("b", torch.zeros(0)), ("c", torch.zeros(3))]
        rows = perdure.torch._Rows(job, tensors)
        table = job.table("t", rows.rows, dim=1024, rule=perdure.Set())
        expected = torch.arange(rows.rows * 1024.0).view(-1, 1024)
        table.inc_run(0, expected.numpy())
        job.clock()
        pieces = _pieces.Pieces(job, rows)
        firsts = []
        for rank in range(3):
            read = values_of(table, pieces, Share(rank, 3))
            firsts.append(read[0][0])
            assert [value for _, values in sorted(read) for value in values] == expected.flatten().tolist()
            assert {len(values) // 1024 for _, values in read} == {2, 3}
        assert len(set(firsts)) == 3
        pieces.take(table, Share(0, 1))
        assert torch.equal(tensors[0][1].flatten(), torch.arange(7000.0))
        assert tensors[2][1].tolist() == [7168.0, 7169.0, 7170.0]
        job.end_job()


def test_places_of_any_strides() -> None:
    """Values that end anywhere in a tensor are written where they belong."""
    values = torch.arange(240.0)
    for tensor in (
        torch.empty(3, 5, 4, 4),
        torch.empty(3, 5, 4, 4).to(memory_format=torch.channels_last),
        torch.empty(12, 20).t(),
        torch.empty(480)[::2],
    ):
        for first in range(0, 241, 7):
            for second in range(first, 241, 11):
                tensor.fill_(-1)
                for at, end in ((0, first), (first, second), (second, 240)):
                    for to, of in _pieces.placed(tensor, at, values[at:end]):
                        to.copy_(of)
                assert torch.equal(tensor.reshape(-1), values)


def memory_of(pid: int) -> int:
    """Return the bytes of a process's own memory, without shared memory and files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


@pytest.mark.parametrize(("recovery", "updates"), [("checkpoint:1000", 1), ("resend:1000", 2)])
def test_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recovery: str, updates: int) -> None:
    """Means are read in pieces, and the memory of the initial weights and of two updates is used again."""
    monkeypatch.setattr(_pieces, "PIECE", 1 << 20)
    cluster = Cluster(tmp_path, "--workers", "1", "--servers", "1", "--clocks", "1000", "--recovery", recovery)
    try:
        with cluster.join(0) as job:
            before = memory_of(job._agent.process.pid)
            model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(16)))
            size = sum(4 * p.numel() for p in model.parameters())
            optimizer = torch.optim.SGD(model.parameters(), 1e-6)
            with perdure.DataParallel(job, model, optimizer) as training:
                for _ in training.steps(8):
                    model(torch.ones(1, 1024)).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                assert job._loans is not None
                lent = os.fstat(job._loans.fd).st_blocks * 512
                shared = sum(region.size for _, region in job._regions._sorted)
                own = memory_of(job._agent.process.pid) - before
        assert lent <= (updates + 0.1) * size
        assert shared < size / 8
        assert own < size / 2
    finally:
        cluster.end()


def test_not_finite_in_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first parameter with a mean that is not finite is named, whichever of its pieces contains it."""
    monkeypatch.setattr(_pieces, "PIECE", 4096)
    with perdure.start(servers=1, out=tmp_path / "run", args=SMALL) as job:
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        refused = pytest.raises(perdure.NonFinite, match=r"0\.weight contains")
        with refused, perdure.DataParallel(job, model, optimizer) as training:
            for step in training.steps(3):
                scale = torch.ones(64)
                scale[40] = float("inf") if step == 1 else 1.0
                loss = model(torch.ones(1, 64)).sum() + (model[0].weight * scale[:, None]).sum()
                (loss + model[1].bias[3] * scale[40]).backward()
                assert torch.isfinite(model[1].weight.grad).all()
                optimizer.step()
                optimizer.zero_grad()
