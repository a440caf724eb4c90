"""SIGTERM: a process that has to end saves its last step, and the slot's next process continues there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import SMALL, Cluster

torch = pytest.importorskip("torch")
pytest.importorskip("torchdata")

#: Trains one slot for two outer steps of eight steps. HOW says in which way a process waits for its end, and after
#: which step of the second round. Each process appends its first clock and step to a file. In an
#: island, rank 0 waits, and the other rank runs into a collective.
TRAIN = """
import ctypes, hashlib, os, time
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader
import perdure, perdure._draft
perdure._draft.Drafts.due = lambda _: False
perdure._draft.SHARE = 1e9  # so that each step is kept, however short it is
how, at = (os.environ["HOW"] + " at 0").split(" at ")[:2]
out, kind = os.environ["OUT"], os.environ["KIND"]
torch.set_num_threads(1)
if kind:
    torch.distributed.init_process_group("gloo")
job = perdure.start()
rank = int(os.environ["RANK"]) if kind else 0
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
net = {"ddp": DistributedDataParallel, "fsdp": fully_shard}.get(kind, lambda of: of)(model)
torch.manual_seed(1 + rank)
inner = torch.optim.AdamW(model.parameters(), 1e-2)
data = torch.randn(128, 4, generator=torch.Generator().manual_seed(9))
loader = StatefulDataLoader(data[64 * rank:64 * rank + 64], 4, shuffle=True)
def waits(of):
    with open(f"{out}.pid{rank}", "w") as f:
        f.write(str(os.getpid()))
    open(out + ".waits", "w").close()
    while of():
        time.sleep(0.01)
if how == "outer step":  # its update has not been sent
    clock = job.clock
    job.clock = lambda: waits(lambda: True) if job.now == 2 else clock()
with perdure.DiLoCo(job, net, inner, sync_every=8, state=[loader]) as d:
    with open(f"{out}.begun{rank}", "a") as f:
        f.write(f"{job.now}:{d._steps} ")
    while job.now <= 2:
        for batch in loader:
            inner.zero_grad()
            net(batch).square().mean().backward()
            inner.step()
            if how and (job.now, d._steps) == (2, int(at)):
                if rank:
                    with open(f"{out}.pid{rank}", "w") as f:
                        f.write(str(os.getpid()))
                    continue
                if not kind:
                    model(batch)  # changes the running means
                torch.rand(3)
                if how == "mutex":  # no signal handler of Python runs
                    mutex = ctypes.create_string_buffer(64)
                    lock = ctypes.CDLL(None).pthread_mutex_lock
                    waits(lambda: lock(mutex) and False)
                    lock(mutex)
                elif how == "shared weights":
                    with d.shared_weights():
                        waits(lambda: True)
                else:
                    waits(lambda: os.path.exists(out + ".waits"))
            if job.now > 2:
                break
h = hashlib.sha256()
for v in net.state_dict().values():
    h.update((v.full_tensor() if hasattr(v, "full_tensor") else v).numpy().tobytes())
with open(f"{out}.hash{rank}", "w") as f:
    f.write(h.hexdigest())
"""


def await_file(path: Path, of: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert of.poll() is None, of.communicate()
        time.sleep(0.01)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the hash of the model without a signal."""
    return run(tmp_path_factory.mktemp("calm"), [""])[0]


def run(folder: Path, hows: list[str]) -> tuple[str, str]:
    """Train with several processes; SIGTERM ends all but the last one. Return the hash and their first steps."""
    cluster = Cluster(folder, "--workers", "1", "--servers", "1", "--clocks", "1000")
    out = str(folder / "out")
    try:
        for how in hows:
            environment = cluster.environment | {"PERDURE_SLOT": "0", "HOW": how, "OUT": out, "KIND": ""}
            environment.pop("PERDURE_RUN", None)  # no directory of this machine
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            of = subprocess.Popen([sys.executable, "-c", TRAIN], env=environment, text=True, **pipes)
            if how:
                await_file(Path(out + ".waits"), of)
                of.send_signal(signal.SIGTERM)
            said = of.communicate()
            assert of.returncode == (-signal.SIGTERM if how else 0), said
            assert "no draft" not in said[1]
            Path(out + ".waits").unlink(missing_ok=True)
        assert not list((folder / "run").glob("**/state-s00000-g000000-*"))  # the last process has deleted the draft
        return Path(out + ".hash0").read_text(), Path(out + ".begun0").read_text()
    finally:
        cluster.end()


def test_saves_the_last_step(tmp_path: Path, calm: str) -> None:
    """In an evaluation, also of the shared weights, in a call into C, in which Python handles no signals, and in an
    outer step, which the next process makes at its start."""
    hows = ["evaluation at 3", "shared weights at 4", "mutex at 5", "outer step at 0", ""]
    assert run(tmp_path, hows) == (calm, "1:0 2:3 2:4 2:5 3:0 ")


def launch(folder: Path, name: str, *flags: str, how: str = "", kind: str = "") -> subprocess.Popen[str]:
    program = folder / "train.py"
    program.write_text(TRAIN)
    command = [sys.executable, "-m", "perdure", "launch", "-q", *flags, "--out", str(folder / name), str(program)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    environment |= {"HOW": how, "OUT": str(folder / "out"), "KIND": kind}
    return subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE)


NEW = ("--servers", "1", "--recovery", "resend:20", *SMALL)


def test_launcher(tmp_path: Path, calm: str) -> None:
    """SIGTERM to the launcher: the resumed run continues from the last step."""
    first = launch(tmp_path, "first", "--nproc", "1", *NEW, how="evaluation at 3")
    await_file(tmp_path / "out.waits", first)
    first.send_signal(signal.SIGTERM)
    said = first.communicate()[1]
    assert first.returncode == 130, said
    assert "resuming starts at clock 2" in said
    second = launch(tmp_path, "second", "--resume", str(tmp_path / "first"))
    assert second.wait() == 0, second.communicate()
    assert (tmp_path / "out.begun0").read_text() == "1:0 2:3 "
    assert (tmp_path / "out.hash0").read_text() == calm


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_island(tmp_path: Path, kind: str) -> None:
    """SIGTERM to one rank or to the launcher, while rank 0 evaluates and rank 1 waits in a collective."""
    ranks = ("--nproc", "2", "--nproc-per-learner", "2")
    calm = launch(tmp_path, "calm", *ranks, *NEW, kind=kind)
    assert calm.wait() == 0, calm.communicate()
    expected = [(tmp_path / f"out.hash{rank}").read_text() for rank in range(2)]
    for of in tmp_path.glob("out.*"):
        of.unlink()
    first = launch(tmp_path, "first", *ranks, *NEW, how="evaluation at 3", kind=kind)
    await_file(tmp_path / "out.waits", first)
    (tmp_path / "train.py").write_text(TRAIN.replace("int(at)", "5"))  # for the next process
    os.kill(int((tmp_path / "out.pid1").read_text()), signal.SIGTERM)
    while (tmp_path / "out.begun1").read_text().count(":") < 2:
        assert first.poll() is None, first.communicate()
        time.sleep(0.01)
    (tmp_path / "out.waits").unlink()
    await_file(tmp_path / "out.waits", first)
    first.send_signal(signal.SIGTERM)
    assert first.wait() == 130, first.communicate()
    second = launch(tmp_path, "second", *ranks, "--resume", str(tmp_path / "first"), kind=kind)
    assert second.wait() == 0, second.communicate()
    for rank in range(2):
        assert (tmp_path / f"out.begun{rank}").read_text() == "1:0 2:3 2:5 "
        assert (tmp_path / f"out.hash{rank}").read_text() == expected[rank]
