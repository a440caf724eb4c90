"""A machine of three gets notice: a standby on another one takes its slot, and no step is lost or repeated.

The machines are network namespaces if this user may create them, and otherwise hosts on this machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

#: Each rank appends a line for each step: the slot, the time, and its samples. The process that gets slot 0 first waits
#: in an evaluation after its 45th step, which is in the middle of a round, for its end.
TRAIN = """
import hashlib, os, sys, time
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
import perdure, perdure._draft
perdure._draft.SHARE = 1e9  # so that each step is kept, however short it is
kind, out = sys.argv[1:]
torch.set_num_threads(1)
if kind == "island":
    torch.distributed.init_process_group("gloo")
job = perdure.start()
rank = int(os.environ["RANK"]) if kind == "island" else 0
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 1))
if kind == "island":
    fully_shard(model)
x = torch.randn(800, 8, generator=torch.Generator().manual_seed(5))
data = TensorDataset(x, torch.arange(800))
sampler = perdure.Sampler(job, len(data), batch=4, drop_last=True)
loader = sampler.loader(DataLoader(data, batch_sampler=sampler))
inner = torch.optim.AdamW(model.parameters(), 1e-2)
training = {
    "server": lambda: perdure.ServerOptimizer(job, model, torch.optim.Adam(model.parameters(), 1e-2)),
    "data": lambda: perdure.DataParallel(job, model, inner),
}.get(kind, lambda: perdure.DiLoCo(job, model, inner, sync_every=30))()
first = not os.path.exists(f"{out}.steps.{job.slot}.{rank}")
with training as p, open(f"{out}.steps.{job.slot}.{rank}", "a") as f:
    made = 0
    for epoch in job.epochs(1):
        for batch, of in p.batches(loader) if kind == "data" else loader:
            if kind != "server":
                inner.zero_grad()
            (model(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
            if kind == "server":
                p.step()
                p.zero_grad()
            else:
                inner.step()
            made += 1
            print(time.time(), *of.tolist(), file=f, flush=True)
            if first and made == 45 and job.slot == 0 and os.path.exists(out + ".wait") and rank == 0:
                open(out + ".evaluates", "w").close()
                while True:
                    time.sleep(0.01)
h = hashlib.sha256()
for v in model.state_dict().values():
    h.update((v.full_tensor() if hasattr(v, "full_tensor") else v).numpy().tobytes())
with open(f"{out}.hash.{job.slot}.{rank}", "w") as f:
    f.write(h.hexdigest())
"""


@pytest.fixture(scope="module")
def machines() -> Iterator[list[tuple[list[str], str]]]:
    """Return for each of three machines the words before a command that runs there, and its address."""
    made: list[str] = []

    def ip(*args: str) -> None:
        subprocess.run(["ip", *args], check=True, capture_output=True)

    tag = f"prd{os.getpid()}"
    try:
        try:
            ip("netns", "add", made_of(made, f"{tag}sw"))
            ip("-n", f"{tag}sw", "link", "add", "br0", "type", "bridge")
            ip("-n", f"{tag}sw", "link", "set", "br0", "up")
            for i in range(3):
                ip("netns", "add", made_of(made, f"{tag}m{i}"))
                ip("link", "add", "eth0", "netns", f"{tag}m{i}", "type", "veth", "peer", f"p{i}", "netns", f"{tag}sw")
                ip("-n", f"{tag}m{i}", "addr", "add", f"10.89.0.{i + 1}/24", "dev", "eth0")
                for name in ("eth0", "lo"):
                    ip("-n", f"{tag}m{i}", "link", "set", name, "up")
                ip("-n", f"{tag}sw", "link", "set", f"p{i}", "master", "br0")
                ip("-n", f"{tag}sw", "link", "set", f"p{i}", "up")
            yield [(["ip", "netns", "exec", f"{tag}m{i}"], f"10.89.0.{i + 1}") for i in range(3)]
        except (OSError, subprocess.CalledProcessError):
            yield [([], f"127.0.0.{i + 1}") for i in range(3)]
    finally:
        for name in made:
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                ip("netns", "del", name)


def made_of(made: list[str], name: str) -> str:
    made.append(name)
    return name


class Job:
    """A job of two slots on three machines, with a worker each."""

    def __init__(self, folder: Path, machines: list[tuple[list[str], str]], kind: str, name: str) -> None:
        self.folder, self.machines, self.out = folder / name, machines, folder / name / "out"
        self.folder.mkdir()
        (self.folder / "train.py").write_text(TRAIN)
        if name == "notice":
            (self.folder / "out.wait").touch()
        recovery = "chain:2,checkpoint:50" if kind == "data" else "chain:2"
        (self.folder / "job.yaml").write_text(
            "workload: own\nworkers: 2\nservers: 3\nshards: 3\nclocks: 1000000\nconsistency: bsp\n"
            f"recovery: {recovery}\nstore: file://{self.folder}/store\n"
        )
        binary = os.environ["PERDURE_BINARY"]
        subprocess.run([binary, "keys", "new", str(self.folder / "keys")], check=True, capture_output=True)
        at = f"{machines[0][1]}:{7000 + os.getpid() % 20000}"
        keys = ["--keys", "keys"]
        self.coordinator = self.start(
            0, "coordinator", [binary, "coordinator", "--job", "job.yaml", "--dir", "job", "--listen", at, *keys]
        )
        ranks = ["--nproc", "2", "--nproc-per-learner", "2"] if kind == "island" else ["--nproc", "1"]
        launch = [sys.executable, "-m", "perdure", "launch", *ranks, "--join", at, *keys, "--notice", "25s"]
        self.hosts = {
            f"m{i}": self.start(
                i,
                f"m{i}",
                [*launch, "--name", f"m{i}", "--dir", f"m{i}.dir", "train.py", kind, str(self.out)],
            )
            for i in range(3)
        }

    def start(self, machine: int, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("w") as log:
            of = [*self.machines[machine][0], *command]
            return subprocess.Popen(of, cwd=self.folder, env=environment, stdout=log, stderr=log)

    def said(self) -> str:
        return "".join(path.read_text() for path in [*self.folder.glob("*.log"), *self.folder.glob("*.dir/logs/*")])

    def until(self, path: Path) -> None:
        while not path.exists():
            assert self.coordinator.poll() is None, self.said()
            time.sleep(0.01)

    def host_of(self, slot: int) -> str:
        command = [os.environ["PERDURE_BINARY"], "status", "job", "--keys", "keys/operator"]
        of = [*self.machines[0][0], *command]
        done = subprocess.run(of, cwd=self.folder, capture_output=True, text=True, check=True)
        found = re.search(rf"worker:{slot} .* host (m\d)\n", done.stdout)
        assert found is not None, done.stdout
        return found[1]

    def done(self) -> dict[str, list[str]]:
        """Wait for the end. Return the hash and the samples of each rank's steps by slot and rank."""
        assert self.coordinator.wait() == 0, self.said()
        for host in self.hosts.values():
            assert host.wait() == 0, self.said()
        found = {}
        for path in sorted(self.folder.glob("out.hash.*")):
            steps = Path(str(path).replace(".hash.", ".steps.")).read_text().splitlines()
            found[path.name] = [path.read_text(), *(" ".join(line.split()[1:]) for line in steps)]
        return found

    def end(self) -> None:
        for of in [*self.hosts.values(), self.coordinator]:
            if of.poll() is None:
                of.kill()
                of.wait()


@pytest.mark.parametrize("kind", ["diloco", "island", "server", "data"])
def test_notice_to_a_machine(tmp_path: Path, machines: list[tuple[list[str], str]], kind: str) -> None:
    """The slot of the machine that gets notice during an evaluation continues elsewhere with the next step."""
    found = []
    for name in ("calm", "notice"):
        job = Job(tmp_path, machines, kind, name)
        try:
            if name == "notice":
                job.until(Path(f"{job.out}.evaluates"))
                host = job.host_of(0)
                job.hosts[host].send_signal(signal.SIGTERM)
                assert job.hosts[host].wait() == 0, job.said()
            found.append(job.done())
            assert "no draft" not in job.said()
        finally:
            job.end()
    calm, notice = found
    assert len(calm) == (4 if kind == "island" else 2)
    for at, steps in calm.items():
        # With DataParallel the replacement computes the last step again, to restore its own state; it counts once.
        more = list(dict.fromkeys(notice[at])) if kind == "data" else notice[at]
        assert more == steps, at
