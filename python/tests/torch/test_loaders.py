"""Loaders with worker processes, and updates with NaN, under real kills."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchdata")

import test_torch
import torch
from conftest import SMALL
from test_torch import launch
from torch import nn
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

import perdure


def change(monkeypatch: pytest.MonkeyPatch, was: str, is_now: str) -> None:
    """Edit the program that ``launch`` starts."""
    assert test_torch.PERDURE.count(was) == 1
    monkeypatch.setattr(test_torch, "PERDURE", test_torch.PERDURE.replace(was, is_now))


@pytest.mark.parametrize("how", ["parallel", "diloco"])
def test_data_once_with_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Each sample counts once, although loader processes have read ahead of the updates."""
    change(monkeypatch, "batch_size=16)", "batch_size=16, shuffle=True, num_workers=2, prefetch_factor=4)")
    steps = {"parallel": 150, "diloco": 30}[how]  # more than one epoch, of 128 batches
    calm = launch(tmp_path, "calm", how, steps=steps)
    kills = [f"--fault=kill:worker:{i % 2}@clock:{steps * of // 10}" for i, of in enumerate((3, 5, 9))]
    storm = launch(tmp_path, "storm", how, *kills, steps=steps)
    assert calm == storm
    assert (tmp_path / "storm.run" / "events.jsonl").read_text().count('"fault"') == len(kills)


class Asks(Dataset[float]):
    """A dataset that calls the job while loading."""

    def __init__(self, table: perdure.Table) -> None:
        self.table = table

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> float:
        return float(self.table.get([0])[0, 0])


def test_job_in_a_loading_process(job: perdure.Job) -> None:
    table = job.table("w", rows=4, dim=1, rule=perdure.Add())
    loader = StatefulDataLoader(Asks(table), batch_size=4, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(perdure.Forked, match="join in the process that trains"):
        next(iter(loader))
    table.inc([0], [[1]])
    assert job.clock() == 1
    assert table.get([0]).tolist() == [[1]]


def test_nan_in_diloco(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    inner = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        inner.zero_grad()
        model(torch.ones(1, 3)).square().sum().backward()
        inner.step()

    with perdure.start(out=tmp_path / "run", clocks=100, args=SMALL) as job:
        outer = perdure.DiLoCo(job, model, inner, sync_every=2)
        step()
        step()
        assert outer.synced
        good = {name: value.clone() for name, value in model.state_dict().items()}
        (group,) = outer._groups
        before, now = group.table.get_run(0, group.rows.rows), job.now
        for bad in (float("nan"), float("inf"), float("-inf")):
            with torch.no_grad():
                model[1].bias.fill_(bad)
            outer._drafts._due = 0.0
            inner.zero_grad()  # so that the other parameters stay unchanged
            inner.step()
            with pytest.raises(perdure.NonFinite, match=r"1\.bias contains NaN or Inf"):
                inner.step()
            assert job.now == now
            assert outer._drafts.read() is None  # a process that continued from a draft would fail in the same way
            model.load_state_dict(good)
        step()
        step()
        assert job.now == now + 1
        after = group.table.get_run(0, group.rows.rows)
        assert torch.isfinite(torch.from_numpy(after)).all()
        assert (after != before).any()
        outer.finish()


def test_nan_names_its_step(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    inner = torch.optim.SGD(model.parameters(), 0.1)
    with perdure.start(out=tmp_path / "run", clocks=100, args=SMALL) as job:
        perdure.DiLoCo(job, model, inner, sync_every=5)
        with pytest.raises(perdure.NonFinite, match=r"step 3 of the 5 "):
            for step in range(1, 6):
                inner.zero_grad()
                (model(torch.ones(1, 3)).square().sum() * (float("inf") if step == 3 else 1)).backward()
                inner.step()


def test_nan_ends_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that fails with NaN restarts from the last outer step, and the model contains no NaN."""
    counted = "            tokens.add(len(batch[0]))\n"
    wrong = (
        "            if rank == 1 and job.now == 4 and not os.path.exists(f'{out}.wrong'):\n"
        "                open(f'{out}.wrong', 'w').close()\n"
        "                model[0].weight.grad[3, 3] = float('nan')\n"
    )
    change(monkeypatch, counted, counted + wrong)
    (tmp_path / "calm.wrong").touch()
    calm = launch(tmp_path, "calm", "diloco", steps=10)
    storm = launch(tmp_path, "storm", "diloco", steps=10)
    assert "NonFinite: " in (tmp_path / "storm.run" / "logs" / "worker-1.log").read_text()
    assert calm == storm
