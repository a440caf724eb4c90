"""A process that takes a slot over goes on from the draft of its predecessor, and ends with the same model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SMALL

from perdure._draft import Drafts

torch = pytest.importorskip("torch")
pytest.importorskip("torchdata")

#: Slot 1 kills itself behind the 13th step of clock 3, once. It writes a draft at each step. Each process adds the step
#: that it begins with to a file.
TRAIN = """
import hashlib, os, signal, sys
import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader
import perdure, perdure._draft
perdure._draft.SHARE = 1e9
torch.set_num_threads(1)
out, kill, incs, torn = sys.argv[1], *(arg == "yes" for arg in sys.argv[2:])
job = perdure.start()
rank, of = job.share
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
inner = torch.optim.AdamW(model.parameters(), 1e-2)
x = torch.randn(512, 4, generator=torch.Generator().manual_seed(9))
loader = StatefulDataLoader(x[rank::of], batch_size=4, shuffle=True)
counts = job.table("counts", 8, dim=1, rule=perdure.Add())
with perdure.DiLoCo(job, model, inner, sync_every=20, state=[loader]) as d:
    with open(f"{out}.begun.{rank}", "a") as f:
        f.write(f"{job.now}:{d._steps} ")
    while job.now <= 6:
        for batch in loader:
            inner.zero_grad()
            (model(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
            if incs and d._steps == 9:
                counts.inc([0], [[1.0]])
            inner.step()
            if kill and rank == 1 and job.now == 3 and d._steps == 13 and not os.path.exists(f"{out}.killed"):
                open(f"{out}.killed", "w").close()
                if torn:
                    newest = max(d._drafts._files, key=lambda path: path.stat().st_mtime_ns)
                    os.truncate(newest, newest.stat().st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            if job.now > 6:
                break
    total = counts.get_run(0, 1)
h = hashlib.sha256()
for v in model.state_dict().values():
    h.update(v.numpy().tobytes())
with open(f"{out}.{rank}", "w") as f:
    f.write(f"{h.hexdigest()} {total.sum()}")
"""


def launch(folder: Path, name: str, *how: str) -> tuple[list[str], str]:
    """Train with two processes: what each has come to, and with which steps those of slot 1 have begun."""
    program, out = folder / "train.py", folder / name
    program.write_text(TRAIN)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", "2", "--servers", "1", *SMALL, "-q"]
    done = subprocess.run(
        [*command, "--out", f"{out}.run", str(program), str(out), *how],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + (folder / f"{name}.run" / "logs" / "worker-1.log").read_text()
    assert not list((folder / f"{name}.run" / "drafts").iterdir())
    return [(folder / f"{name}.{rank}").read_text() for rank in range(2)], (folder / f"{name}.begun.1").read_text()


def test_goes_on_from_a_draft(tmp_path: Path) -> None:
    calm, _ = launch(tmp_path, "calm", "no", "no", "no")
    storm, begun = launch(tmp_path, "storm", "yes", "no", "no")
    assert storm == calm
    assert begun.split() == ["1:0", "3:13"]


def test_a_torn_draft_is_passed_over(tmp_path: Path) -> None:
    calm, _ = launch(tmp_path, "calm", "no", "no", "no")
    storm, begun = launch(tmp_path, "storm", "yes", "no", "yes")
    assert storm == calm
    assert begun.split() == ["1:0", "3:12"]


def test_what_the_program_has_inced_is_done_again(tmp_path: Path) -> None:
    """An Inc of the program's own died with it: so a draft behind it would lose it."""
    calm, _ = launch(tmp_path, "calm", "no", "yes", "no")
    storm, begun = launch(tmp_path, "storm", "yes", "yes", "no")
    assert storm == calm
    assert begun.split() == ["1:0", "3:9"]


def test_files(tmp_path: Path) -> None:
    drafts = Drafts(tmp_path, 3)
    assert drafts.read() is None
    for i in range(3):
        drafts.write({"i": i, "values": torch.full((i + 1,), float(i))})
    assert not drafts.due()
    newest = drafts.read()
    assert newest["i"] == 2
    assert newest["values"].tolist() == [2.0] * 3
    for length in range(newest_size := drafts._files[0].stat().st_size):
        data = drafts._files[0].read_bytes()
        drafts._files[0].write_bytes(data[:length])
        assert Drafts(tmp_path, 3).read()["i"] == 1, (length, newest_size)
        drafts._files[0].write_bytes(data)
    again = Drafts(tmp_path, 3)
    again.read()
    again.write({"i": 3})
    assert Drafts(tmp_path, 3).read()["i"] == 3
    again.forget()
    assert Drafts(tmp_path, 3).read() is None


def test_no_folder_no_drafts(tmp_path: Path) -> None:
    assert not Drafts(None, 0).due()
    assert not Drafts(tmp_path / "elsewhere", 0).due()
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / "drafts").write_text("a file where the folder would be")
    assert not Drafts(folder, 0).due()
