"""Islands: learners of several ranks, with DDP or FSDP2 inside, and DiLoCo or DataParallel between them.

PERDURE_STORMS is the number of storms, and PERDURE_STORM_SEED the seed of the first one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL

pytest.importorskip("torch")

from test_storms import FIRST, STORMS, agents_die, meanwhile

SAMPLES, EPOCHS, STEPS = 512, 2, 32  # of the program

#: A model with every kind of state: buffers, random numbers and an object of each rank. The arguments are the method
#: (with "steps" DataParallel, which accumulates gradients), the prefix of the results, and deaths as "slot.rank.step",
#: or "slot.rank.sSTEP" for one while the state is saved.
TRAIN = """
import hashlib, json, os, signal, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
import perdure

how, out, *deaths = sys.argv[1:]
torch.set_num_threads(1)
dist.init_process_group("gloo")
if "stream" in how:
    perdure.job._PIECE = 3000  # states go to the store in pieces
job = perdure.start()
rank, slot = dist.get_rank(), job.slot


def die(point):
    name = f"{slot}.{rank}.{point}"
    if name in deaths and not os.path.exists(f"{out}.{name}"):
        open(f"{out}.{name}", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


class Seen:
    def __init__(self):
        self.of, self.steps = [], 0

    def state_dict(self):
        die(f"s{self.steps}")
        return {"of": list(self.of), "steps": self.steps}

    def load_state_dict(self, state):
        self.of, self.steps = state["of"], state["steps"]


g = torch.Generator().manual_seed(7)
x = torch.randn(512, 12, generator=g)
y = (x @ torch.randn(12, 3, generator=g)).argmax(1)
torch.manual_seed(5)
model = nn.Sequential(nn.Linear(12, 37), nn.BatchNorm1d(37), nn.ReLU(), nn.Dropout(0.1), nn.Linear(37, 3))
torch.manual_seed(100 + 10 * slot + rank)
if "fsdp" in how:
    fully_shard(model[0])
    net = fully_shard(model)
else:
    net = DistributedDataParallel(model)
inner = torch.optim.AdamW(net.parameters(), 1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(inner, 32)
sampler = perdure.Sampler(job, 512, batch=16, drop_last=True)
loader = sampler.loader(DataLoader(TensorDataset(torch.arange(512), x, y), batch_sampler=sampler))
seen = Seen()
more = {"compress": "int8", "weights": lambda: 2.0 + rank} if "int8" in how else {}
if "steps" in how:
    training = perdure.DataParallel(job, net, inner, shared=[schedule], state=[seen])
else:
    training = perdure.DiLoCo(job, net, inner, sync_every=4, schedulers=[schedule], state=[seen], **more)
with training:
    for epoch in job.epochs(2):
        for i, a, b in training.batches(loader) if "steps" in how else loader:
            inner.zero_grad()
            if "steps" in how:
                with training.no_sync():
                    nn.functional.cross_entropy(net(a[:4]), b[:4], reduction="sum").div(8).backward()
                nn.functional.cross_entropy(net(a[4:]), b[4:], reduction="sum").div(8).backward()
            else:
                nn.functional.cross_entropy(net(a), b).backward()
            seen.of += i.tolist()
            seen.steps += 1
            die(seen.steps)
            inner.step()
            if "steps" in how:
                schedule.step()
h = hashlib.sha256()
for name, v in net.state_dict().items():
    h.update((v.full_tensor() if hasattr(v, "full_tensor") else v).numpy().tobytes())
with open(f"{out}.{slot}.{rank}", "w") as f:
    json.dump([h.hexdigest(), seen.of, schedule.get_last_lr()], f)
"""


def command(folder: Path, name: str, program: str, *flags: str, nproc: int = 4, ranks: str = "2") -> list[str]:
    (folder / "train.py").write_text(program)
    of = [sys.executable, "-m", "perdure", "launch", "--nproc", str(nproc), "--nproc-per-learner", ranks]
    return [*of, "--servers", "2", *SMALL, "-q", "--out", str(folder / f"{name}.run"), *flags, str(folder / "train.py")]


#: A module for --preload. Killed islands are forked again however early they die, and frozen ones soon.
WARM = """
import torch, torch._dynamo, torch.distributed.fsdp
import perdure.torch, perdure._island_diloco, perdure._island_parallel, perdure._warm
perdure._warm.QUICK, perdure._warm.FROZEN = 0.0, 5
"""


def run(folder: Path, of: list[str]) -> subprocess.CompletedProcess[str]:
    (folder / "warm.py").write_text(WARM)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "OMP_NUM_THREADS": "1"}
    return subprocess.run(of, env=environment, capture_output=True, text=True, check=False, timeout=200)


def launch(folder: Path, name: str, how: str, *flags: str, deaths: tuple[str, ...] = ()) -> str:
    """Train two islands of two ranks. Return the hash of the model, which all ranks have."""
    done = run(folder, [*command(folder, name, TRAIN, "--preload=warm", *flags), how, str(folder / name), *deaths])
    logs = (folder / f"{name}.run" / "logs" / f"worker-{slot}.log" for slot in range(2))
    assert done.returncode == 0, done.stderr + "".join(log.read_text() for log in logs if log.exists())
    results: list[Any] = [
        json.loads((folder / f"{name}.{slot}.{rank}").read_text()) for slot in range(2) for rank in range(2)
    ]
    assert len({(model, *rates) for model, _, rates in results}) == 1
    assert sorted(i for _, of, _ in results for i in of) == sorted(EPOCHS * list(range(SAMPLES)))
    assert all((folder / f"{name}.{death}").exists() for death in deaths)
    return str(results[0][0])


CALM: dict[str, str] = {}  # the models trained without a storm, by method


def calm(folder: Path, how: str) -> str:
    """Return the model without a storm."""
    if how not in CALM:
        CALM[how] = launch(folder, "calm", how)
    return CALM[how]


@pytest.mark.parametrize(
    ("how", "recovery", "deaths"),
    [
        # In the middle of a round, at an outer step, while a state is saved, and in the first round.
        ("ddp", "resend:20", "0.1.6 1.0.8 0.0.s12 1.1.s16 0.1.2"),
        ("fsdp-stream", "checkpoint:3", "0.1.6 1.0.8 0.0.s12 1.1.s16 0.1.2"),
        ("fsdp-stream-steps", "checkpoint:3", "0.1.6 1.0.8 0.0.s10 1.1.s13 0.1.2"),
    ],
)
def test_same_model_through_kills(tmp_path: Path, how: str, recovery: str, deaths: str) -> None:
    """The model of FSDP2 equals that of DDP, since halves of two gradients are exact."""
    kills = ("server:0@clock:3", "coordinator@clock:5", "worker:1@clock:6")
    flags = ["--recovery", recovery, *(f"--fault=kill:{kill}" for kill in kills)]
    expected = calm(tmp_path, "ddp-steps" if "steps" in how else "ddp")
    assert launch(tmp_path, "storm", how, *flags, deaths=tuple(deaths.split())) == expected


def ranks_of(program: Path) -> list[int]:
    """Return the ranks of a program's islands, whose parents have the same command line."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if str(program).encode() in words and words == Path("/proc", parent, "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except (OSError, IndexError):
            continue  # the process has ended
    return sorted(found)


@contextlib.contextmanager
def ranks_die(program: Path, rng: random.Random, most: int = 4) -> Iterator[None]:
    """Kill or freeze ranks of a program at random moments while the block runs."""

    def kill(over: threading.Event) -> None:
        for _ in range(most):
            if over.wait(rng.uniform(0.2, 1.0)):
                return
            for rank in rng.sample(ranks_of(program), k=1) if ranks_of(program) else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank, rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]))

    with meanwhile(kill):
        yield


@pytest.mark.skipif("PERDURE_STORMS" not in os.environ, reason="long; set PERDURE_STORMS to the number of storms")
@pytest.mark.parametrize("seed", range(FIRST, FIRST + STORMS))
@pytest.mark.parametrize("how", ["ddp", "fsdp", "fsdp-stream", "fsdp-int8", "ddp-steps", "fsdp-stream-steps"])
def test_storm(tmp_path: Path, how: str, seed: int) -> None:
    """Ranks, agents, servers, whole islands and the coordinator die at random, or ranks freeze."""
    rng = random.Random(f"{how} {seed}")
    recovery = rng.choice(["resend:20", "resend:auto", "checkpoint:3", "chain:2", "stateless"])
    if "steps" in how:  # DataParallel needs checkpoints
        recovery = {"chain:2": "chain:2,checkpoint:4", "stateless": "resend:6"}.get(recovery, recovery)
    kinds = ["worker:0", "worker:1", "server:0", "server:1", "coordinator"]
    if recovery.startswith("chain"):  # a second server must not die before the first one is replaced
        kinds.remove("server:1")
    faults = [f"--fault=kill:{rng.choice(kinds)}@clock:{rng.randrange(1, 8)}" for _ in range(4)]
    deaths = {f"{rng.randrange(2)}.{rng.randrange(2)}.{rng.choice(['', 's'])}{rng.randrange(1, 32)}" for _ in range(4)}
    # DiLoCo saves in each fourth step, and DataParallel when a checkpoint is due.
    deaths = {of for of in deaths if "s" not in of or ("steps" not in how and int(of.rpartition("s")[2]) % 4 == 0)}
    expected = calm(tmp_path, how)
    seeds = random.Random(rng.random()), random.Random(rng.random())
    with agents_die(tmp_path / "train.py", seeds[0], most=2), ranks_die(tmp_path / "train.py", seeds[1]):
        model = launch(tmp_path, "storm", how, "--recovery", recovery, *faults, deaths=tuple(sorted(deaths)))
    assert model == expected, (seed, recovery, faults, deaths)


#: A training without random parts, by islands or by slots of one process, which see the same batches.
EXACT = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
import perdure

out, how, between = sys.argv[1:]
torch.set_num_threads(1)
if how == "island":
    dist.init_process_group("gloo")
job = perdure.start()
g = torch.Generator().manual_seed(7)
x = torch.randn(96, 7, generator=g)
y = torch.randn(96, 5, generator=g)
torch.manual_seed(5)
model = nn.Sequential(nn.Linear(7, 23), nn.Tanh(), nn.Linear(23, 5))
if how == "island":
    fully_shard(model)
inner = torch.optim.Adam(model.parameters(), 1e-2)
sampler = perdure.Sampler(job, 96, batch=6, drop_last=True)
loader = sampler.loader(DataLoader(TensorDataset(x, y), batch_sampler=sampler))
steps = between == "DataParallel"
with perdure.DataParallel(job, model, inner) if steps else perdure.DiLoCo(job, model, inner, sync_every=2) as d:
    for epoch in job.epochs(2):
        for a, b in d.batches(loader) if steps else loader:
            inner.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            inner.step()
    if not steps:
        with d.shared_weights():
            shared = next(model.parameters()).detach().clone()
        own = next(model.parameters()).detach().clone()
state = {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in model.state_dict().items()}
if job.slot == 0:
    d.export(out + ".safetensors")
    if how == "one" or os.environ["RANK"] == "0":
        torch.save(state, out)
"""


@pytest.mark.parametrize("between", ["DiLoCo", "DataParallel"])
def test_equals_slots_of_one_process(tmp_path: Path, between: str) -> None:
    """Islands of three ranks and of one rank train the same model as two slots of one process."""
    torch = pytest.importorskip("torch")
    of = [*command(tmp_path, "island", EXACT, ranks="3,1"), str(tmp_path / "island"), "island", between]
    done = run(tmp_path, of)
    assert done.returncode == 0, done.stderr
    one = [sys.executable, "-m", "perdure", "launch", "--nproc", "2", "-q", *SMALL, "--out", str(tmp_path / "one.run")]
    done = run(tmp_path, [*one, str(tmp_path / "train.py"), str(tmp_path / "one"), "one", between])
    assert done.returncode == 0, done.stderr
    island, plain = (torch.load(tmp_path / name) for name in ("island", "one"))
    for name, value in plain.items():
        torch.testing.assert_close(island[name], value, rtol=1e-4, atol=1e-5)
    from safetensors.torch import load_file

    exported = load_file(tmp_path / "island.safetensors")
    assert exported.keys() == island.keys()
    assert all(torch.equal(island[name], value) for name, value in exported.items())


#: Slots with different frozen layers. All ranks get those of slot 0.
FROZEN = """
import json, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import perdure

dist.init_process_group("gloo")
job = perdure.start()
rank = dist.get_rank()
torch.manual_seed(job.slot)
model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
model[0].requires_grad_(False)
net = DistributedDataParallel(model)
inner = torch.optim.SGD(model[1].parameters(), 0.1)
with perdure.DiLoCo(job, net, inner, sync_every=1) as d:
    for _ in range(3):
        inner.zero_grad()
        net(torch.ones(1, 3) * rank).sum().backward()
        inner.step()
with open(f"{sys.argv[1]}.{job.slot}.{rank}", "w") as f:
    json.dump({name: p.tolist() for name, p in model.named_parameters()}, f)
"""


def test_frozen_layers(tmp_path: Path) -> None:
    done = run(tmp_path, [*command(tmp_path, "frozen", FROZEN, "--preload=warm"), str(tmp_path / "frozen")])
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"frozen.{slot}.{rank}").read_text()) for slot in range(2) for rank in range(2)]
    assert all(of == found[0] for of in found)


#: A model with a frozen layer, sharded along the second dimension or with replicas (HSDP). Rank 1 is killed once in the
#: latter. The job's last clock is planned.
LAYOUTS = """
import json, os, signal, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
import perdure

out, how = sys.argv[1:]
torch.set_num_threads(1)
dist.init_process_group("gloo")
job = perdure.start()
rank, size = dist.get_rank(), dist.get_world_size()
sizes = (2, 2) if how == "hsdp" else (size,)
mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicas", "shards")[-len(sizes) :])
torch.manual_seed(5)
model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8), nn.Linear(8, 4))
model[2].requires_grad_(False)
fully_shard(model, mesh=mesh, shard_placement_fn=None if how == "hsdp" else lambda p: Shard(p.dim() - 1))
inner = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
with perdure.DiLoCo(job, model, inner, sync_every=3) as d:
    while not job.ended:
        for step in range(3):
            g = torch.Generator().manual_seed(1000 * job.now + 10 * step + rank)
            inner.zero_grad()
            model(torch.randn(4, 8, generator=g)).square().mean().backward()
            if (how, job.now, step, rank) == ("hsdp", 3, 1, 1) and not os.path.exists(out + ".killed"):
                open(out + ".killed", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            inner.step()
values = {name: p.full_tensor().tolist() for name, p in model.named_parameters()}
if rank == 0:
    with open(out, "w") as f:
        json.dump(values, f)
"""


def test_layouts_and_resume(tmp_path: Path) -> None:
    """Replicas of shards (HSDP) and shards along another dimension train the same model."""
    torch = pytest.importorskip("torch")
    found = []
    for how in ("hsdp", "dim1"):
        of = command(tmp_path, how, LAYOUTS, "--preload=warm", "--clocks=5", ranks="4")
        done = run(tmp_path, [*of, str(tmp_path / how), how])
        assert done.returncode == 0, done.stderr
        found.append(json.loads((tmp_path / how).read_text()))
    assert (tmp_path / "hsdp.killed").exists()
    for name, values in found[0].items():
        torch.testing.assert_close(torch.tensor(values), torch.tensor(found[1][name]))
    resume = (f"--resume={tmp_path / 'dim1.run'}", "--clocks=9", "--max-failures=1", f"--out={tmp_path / 'again'}")
    of = [sys.executable, "-m", "perdure", "launch", "--nproc=2", "--nproc-per-learner=2", "-q", *resume]
    done = run(tmp_path, [*of, str(tmp_path / "train.py"), str(tmp_path / "again"), "dim1"])
    assert done.returncode == 1
    assert "this slot has 2 ranks, but 4 when it saved its state" in done.stderr, done.stderr


#: Mistakes that all ranks of an island report. The last one is an uncaught error.
MISTAKES = """
import json, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
import perdure

rank = int(os.environ["RANK"])
job = perdure.start()
said = []


def tries(make):
    try:
        make()
        said.append("nothing")
    except perdure.UsageError as error:
        said.append(str(error))


def diloco(model, **settings):
    return perdure.DiLoCo(job, model, torch.optim.SGD(model.parameters(), 0.1), **settings)


torch.manual_seed(5)
same = nn.Linear(4, 4)
tries(lambda: diloco(same))
dist.init_process_group("gloo")
tries(lambda: diloco(nn.Linear(4, 4 + rank)))
tries(lambda: diloco(nn.Sequential(*(nn.Linear(4, 4) for _ in range(1 + rank)))))
tries(lambda: diloco(same, sync_every=10 + rank))
tries(lambda: diloco(same, overlap=2))
sgd = torch.optim.SGD(same.parameters(), 0.1)
tries(lambda: perdure.DataParallel(job, same, sgd, copy=True))
tries(lambda: perdure.DataParallel(job, same, sgd, shared=[torch.optim.lr_scheduler.ConstantLR(sgd)][rank:]))
tries(lambda: perdure.ServerOptimizer(job, same, perdure.SGD(0.1)))
tries(lambda: perdure.Sampler(job, 100, batch=4))
tries(lambda: perdure.Sampler(job, 100, batch=4, drop_last=True, global_batch=True))
tries(job.clock)
tries(lambda: job.save_state(b""))
table = job.table("own", 4, dim=1, rule=perdure.Add())
tries(lambda: table.inc([0], [[1.0]]))
torch.manual_seed(rank)
tries(lambda: diloco(nn.Linear(4, 4)))
with open(sys.argv[1] + f".{rank}", "w") as f:
    json.dump(said, f)
torch.manual_seed(5)
own = nn.Linear(4, 4)
with diloco(own) as d:
    own(torch.randn(4, 4) * (1 + rank)).sum().backward()
    own_inner = d._inner.optimizers[0]
    own_inner.step()
"""

#: A model that is neither wrapped nor sharded, under DataParallel.
ALONE = """
import torch, torch.distributed as dist
import perdure

dist.init_process_group("gloo")
job = perdure.start()
torch.manual_seed(5)
model = torch.nn.Linear(4, 4)
with perdure.DataParallel(job, model, torch.optim.SGD(model.parameters(), 0.1)) as p:
    for step in p.steps(1):
        model(torch.ones(4, 4) * (1 + dist.get_rank())).sum().backward()
"""


#: Each rank uses one of two layers. At "late", rank 1 then changes a row of its weights.
BRANCHES = """
import json, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import perdure

dist.init_process_group("gloo")
job = perdure.start()
rank = dist.get_rank()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 100, bias=False) for _ in range(2)])
        for p in self.parameters():
            nn.init.zeros_(p)

    def forward(self, x):
        return self.layers[rank](x)


model = Model()
net = DistributedDataParallel(model, find_unused_parameters=True)
sgd = torch.optim.SGD(model.parameters(), 1.0)
with perdure.DataParallel(job, net, sgd) as p:
    for step in p.steps(70 if "late" in sys.argv else 3):
        sgd.zero_grad()
        net(torch.full((1, 3), 1.0 + job.slot)).sum().backward()
        sgd.step()
        if step == 3 and rank == 1:
            with torch.no_grad():
                model.layers[0].weight[42, 0] += 1
with open(f"{sys.argv[1]}.{job.slot}.{rank}", "w") as f:
    json.dump([sorted(set(p.flatten().tolist())) for p in model.parameters()], f)
"""


def test_layers_that_one_rank_uses(tmp_path: Path) -> None:
    """A gradient that only another rank has computed counts, as DDP has given it to rank 0."""
    done = run(tmp_path, [*command(tmp_path, "run", BRANCHES, "--preload=warm"), str(tmp_path / "out")])
    assert done.returncode == 0, done.stderr
    for slot in range(2):
        for rank in range(2):  # half of 1 and of 2, on average 0.75 in each step
            assert json.loads((tmp_path / f"out.{slot}.{rank}").read_text()) == [[-2.25], [-2.25]]


def test_weights_of_ranks_must_stay_equal(tmp_path: Path) -> None:
    of = command(tmp_path, "run", BRANCHES, "--preload=warm", "--max-failures=1", nproc=2)
    done = run(tmp_path, [*of, str(tmp_path / "out"), "late"])
    assert done.returncode == 1
    assert "layers.0.weight differs between rank 0 and rank 1 of this island" in done.stderr, done.stderr


def test_mistakes(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        [*command(tmp_path, "run", MISTAKES, "--max-failures=1", nproc=2), str(tmp_path / "said")],
    )
    assert done.returncode == 1
    assert "weight differs between rank 0 and rank 1 of this island" in done.stderr, done.stderr
    first, second = (json.loads((tmp_path / f"said.{rank}").read_text()) for rank in range(2))
    assert not any("\n" in line for line in [*first, *second])
    expected = [
        "no process group",
        "has tensors weight float32 5 4, but rank 0 has tensors weight float32 4 4",
        "has 4 tensors, but rank 0 has 2 tensors",
        "has sync_every 11, but rank 0 has sync_every 10",
        "overlap does not work in an island",
        "copy=True does not work in an island",
        "has 0 objects in shared, but rank 0 has 1 objects in shared",
        "ServerOptimizer does not work in an island",
        "needs drop_last=True",
        "no global_batch",
        "job.clock does not work in an island",
        "job.save_state does not work in an island",
    ]
    for line, other, of in zip(first, second, expected, strict=False):
        assert of in line, (line, of)
        assert line == other
    assert first[len(expected)] == "nothing"  # rank 0 may add to tables
    assert "rank 1 of an island cannot add to the table own" in second[len(expected)]
    assert first[-1] == second[-1]
    assert "weight differs between rank 0 and rank 1" in first[-1]


def test_the_peer_may_end_after_the_last_message() -> None:
    from perdure._island import Link

    here, there = socket.socketpair()

    class Ends:
        def __getattr__(self, name: str) -> Any:
            return getattr(here, name)

        def sendall(self, data: bytes) -> None:
            here.sendall(data)
            there.close()

    end: Any = Ends()
    Link(end, 1).send({"now": 1})
    here.close()


def test_gradients_of_ranks_must_be_equal(tmp_path: Path) -> None:
    done = run(tmp_path, command(tmp_path, "run", ALONE, "--max-failures=1", nproc=2))
    assert done.returncode == 1
    assert "the gradient of weight differs between rank 0 and rank 1 of this island" in done.stderr, done.stderr


def test_trainers_are_refused() -> None:
    from perdure._trainers import _refuse_second

    job: Any = types.SimpleNamespace(_island=object(), _sampler=None)
    with pytest.raises(ValueError, match="callbacks for trainers do not work in an island"):
        _refuse_second(None, job)


def test_layouts_that_cannot_be_mapped() -> None:
    torch = pytest.importorskip("torch")
    from perdure._mirror import place_of

    class Placement:
        dim = 0

        def is_replicate(self) -> bool:
            return False

    class Shard(Placement):
        def __init__(self, dim: int = 0) -> None:
            self.dim = dim

    class Replicate(Placement):
        def is_replicate(self) -> bool:
            return True

    class Mesh:
        def __init__(self, at: list[int], shape: tuple[int, ...]) -> None:
            self.at, self.shape = at, shape

        def get_coordinate(self) -> list[int]:
            return self.at

    def place(here: tuple[int, int], at: list[int], of: tuple[int, ...], *placements: Placement) -> Any:
        p = torch.empty(7, 6)
        p.placements, p.device_mesh = placements, Mesh(at, of)
        p.to_local = lambda: torch.empty(here)
        p.detach = lambda: p
        return place_of("w", p)

    assert place((1, 6), [2], (3,), Shard()) == (slice(6, 7), slice(0, 6))
    assert place((0, 6), [5], (6,), Shard()) == (slice(7, 7), slice(0, 6))
    assert place((4, 2), [0, 1, 1], (2, 2, 3), Shard(), Replicate(), Shard(1)) == (slice(0, 4), slice(2, 4))
    with pytest.raises(ValueError, match="w has the placement"):
        place((4, 6), [0], (2,), type("_StridedShard", (Shard,), {})())
    with pytest.raises(ValueError, match="w has the local shape"):
        place((3, 6), [0], (2,), Shard())


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float64"])
def test_sum_of_bits_does_not_depend_on_shards(kind: str) -> None:
    torch = pytest.importorskip("torch")
    from perdure._mirror import PARTS, bits_of

    for rows, columns in ((130, 7), (3, 12), (64, 1)):
        t = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)).to(getattr(torch, kind))
        whole = [bits_of(t, 0, rows, turn) % 2**32 for turn in range(PARTS)]
        starts = range(0, rows, -(-rows // 3))
        for turn in range(PARTS):
            by_rows = sum(bits_of(t[i : i + starts.step], i, rows, turn) for i in starts)
            by_columns = sum(bits_of(part, 0, rows, turn) for part in t.chunk(2, dim=1))
            assert by_rows % 2**32 == by_columns % 2**32 == whole[turn]
        changed = t.clone()
        changed[rows // 2, columns // 2] += 1
        assert [bits_of(changed, 0, rows, turn) % 2**32 for turn in range(PARTS)] != whole
    assert bits_of(torch.tensor(1.0), 0, 1, 0) == 0x3F800000
