"""Programs that use accelerate, PEFT or TRL, which `make check-torch` installs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL
from launched import hash_of, kills, launch
from test_pages import by_two

import perdure

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")

#: An accelerate program with dropout, mixed precision, accumulated gradients, clipping and a falling rate. An epoch has
#: 7 batches of each slot, and the last one makes a step of its own.
LOOP = """
import hashlib, json, sys
import perdure, perdure.accelerate
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
torch.set_num_threads(1)
torch.manual_seed(1)
tokens = torch.randn(70, 8, generator=torch.Generator().manual_seed(7))
data = [(i, x) for i, x in enumerate(tokens)]
job = perdure.start()
counts = job.table("counts", 70, dim=1, rule=perdure.Add())
accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
# PEFT
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), 1e-2)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 16)
sampler = perdure.Sampler(job, 70, batch=5)
sent = []
loader = DataLoader(data, batch_sampler=sampler)
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
loader = sampler.loader(loader)
rates = []


def step(i, x):
    counts.inc(i.numpy(), torch.ones(len(i), 1).numpy())
    with accelerator.accumulate(model):
        accelerator.backward(model(x).square().mean())
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        SCHEDULE
        optimizer.zero_grad()


LOOPS
total = counts.get_run(0, 70)
# SAVE
h = hashlib.sha256()
for name, v in sorted(accelerator.unwrap_model(model).state_dict().items()):
    h.update(v.numpy().tobytes())
said = {"model": h.hexdigest(), "least": int(total.min()), "most": int(total.max()), "rates": rates, "sent": sent}
with open(f"{sys.argv[1]}.{job.slot}", "w") as f:
    json.dump(said, f)
"""
DATA_PARALLEL = """
with perdure.DataParallel(job, model, optimizer, shared=[scheduler]) as p:
    sent = p._names
    for epoch in job.epochs(4):
        for i, x in p.batches(loader):
            step(i, x)
"""
DILOCO = """
with perdure.DiLoCo(job, model, optimizer, sync_every=3, schedulers=[scheduler]) as d:
    sent = d._groups[0].rows.names
    for epoch in job.epochs(4):
        for i, x in loader:
            step(i, x)
"""
#: What changes with PEFT. The adapter is saved, and loaded into the same base.
LORA = {
    "# PEFT": """
import copy, peft
base = copy.deepcopy(model)
lora = peft.LoraConfig(r=2, target_modules=["0"], modules_to_save=["2"], init_lora_weights=False)
torch.manual_seed(job.slot)  # slot 0 distributes its adapter
model = peft.get_peft_model(model, lora)
torch.manual_seed(2)
""",
    "# SAVE": """
place = f"{sys.argv[1]}.adapter.{job.slot}"
model.save_pretrained(place)
again = peft.PeftModel.from_pretrained(base, place).eval()
model.forward = type(model).forward.__get__(model)  # without mixed precision
assert torch.equal(again(tokens), model.eval()(tokens))
torch.testing.assert_close(again.merge_and_unload()(tokens), model(tokens))
""",
}


@pytest.mark.parametrize(
    ("loops", "schedule", "lora"),
    [(DATA_PARALLEL, "scheduler.step()", {}), (DATA_PARALLEL, "scheduler.step()", LORA), (DILOCO, "", LORA)],
)
def test_same_model_through_kills(tmp_path: Path, loops: str, schedule: str, lora: dict[str, str]) -> None:
    if lora:
        pytest.importorskip("peft")
    program = LOOP.replace("LOOPS", loops).replace("SCHEDULE", schedule)
    for mark, code in lora.items():
        program = program.replace(mark, code)
    calm = launch(tmp_path, "calm", program)
    storm = ("worker:1@clock:3", "server:0@clock:5")
    torn = launch(tmp_path, "torn", program, *(f"--fault=kill:{kill}" for kill in storm))
    assert kills(tmp_path, "torn") == len(storm)
    for of in (*calm, *torn):
        assert (of["least"], of["most"]) == (4, 4)
        assert len(of["sent"]) == 4
        assert all(("lora_" in name or "modules_to_save" in name) == bool(lora) for name in of["sent"])
    for of in calm:
        assert of["rates"] == pytest.approx([1e-2 * (1 - 0.9 * step / 16) for step in range(16)])
    assert {of["model"] for of in (*calm, *torn)} == {calm[0]["model"]}


class Parts:
    """A small accelerate program's objects."""

    def __init__(self, loader: Any = None, **settings: Any) -> None:
        torch.manual_seed(1)
        accelerate.state.AcceleratorState._reset_state(True)
        self.accelerator = accelerate.Accelerator(cpu=True, **settings)
        model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 16)
        self.model, self.optimizer, self.scheduler, self.loader = self.accelerator.prepare(
            model, optimizer, scheduler, loader
        )

    def step(self, x: Any, schedule: bool = True) -> None:
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(self.model(x).square().mean())
            self.optimizer.step()
            if schedule:
                self.scheduler.step()
            self.optimizer.zero_grad()


class Varied(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
    """Samples that differ from epoch to epoch, and contain random numbers."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 35

    def __getitem__(self, i: int) -> Any:
        return torch.full((8,), 1 + i / 10 + self.epoch) + torch.rand(8)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_as_accelerate_alone(tmp_path: Path, accumulate: int) -> None:
    """One slot trains like accelerate without perdure, if that does not read a batch ahead."""
    settings = {"gradient_accumulation_steps": accumulate, "mixed_precision": "bf16"}
    orders: list[list[list[int]]] = []
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        sampler = perdure.Sampler(job, 35, batch=5)
        of = Parts(torch.utils.data.DataLoader(Varied(), batch_sampler=sampler), **settings)
        loader = sampler.loader(of.loader)
        with perdure.DataParallel(job, of.model, of.optimizer, shared=[of.scheduler]) as p:
            for epoch in job.epochs(2):
                orders.append([sampler._order(epoch)[i : i + 5].tolist() for i in range(0, 35, 5)])
                for x in p.batches(loader):
                    of.step(x)
    alone, data = Parts(**settings), Varied()
    for data.epoch, order in enumerate(orders):
        for number, batch in enumerate(order):
            x = torch.stack([data[i] for i in batch])
            if number == 6:  # accelerate makes a step at the end of an epoch
                alone.accelerator.step = accumulate - 1
            alone.step(x)
            if number == 6:
                alone.accelerator.step = 0
    assert hash_of(of.model) == hash_of(alone.model)


def refuses(match: str) -> Any:
    return pytest.raises(perdure.UsageError, match=match)


def test_refused(tmp_path: Path) -> None:
    config = accelerate.DataLoaderConfiguration(use_stateful_dataloader=True)
    of = Parts(torch.utils.data.DataLoader(Varied(), batch_size=5), dataloader_config=config)
    plateau = of.accelerator.prepare(torch.optim.lr_scheduler.ReduceLROnPlateau(of.optimizer.optimizer))
    with perdure.start(out=tmp_path / "run", clocks=99, args=SMALL) as job:
        for make in (
            lambda: perdure.DataParallel(job, of.model, of.optimizer, state=[of.loader]),
            lambda: perdure.DiLoCo(job, of.model, of.optimizer, state=[of.loader]),
        ):
            with refuses("that accelerate has prepared, which reads a batch ahead"):
                make()
        with refuses("ReduceLROnPlateau depends on evaluations"):
            perdure.DiLoCo(job, of.model, of.optimizer, schedulers=[plateau])
        with refuses("weight_decay of AdamW"):
            perdure.ServerOptimizer(job, of.model, of.optimizer)
        job.end_job()


@pytest.mark.parametrize("wrong", ["late", "twice", "epochs"])
def test_refused_in_the_loop(tmp_path: Path, wrong: str) -> None:
    """A wrapped scheduler counts no epochs, and only DiLoCo may step it."""
    of = Parts()
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        sampler = perdure.Sampler(job, 35, batch=5)
        loader = sampler.loader(torch.utils.data.DataLoader(Varied(), batch_sampler=sampler))
        if wrong == "late":
            training: Any = perdure.DiLoCo(job, of.model, of.optimizer, sync_every=2, state=[of.scheduler])
            batches, said = loader, "LinearLR in state= is stepped after the optimizer's step"
        elif wrong == "twice":
            training = perdure.DiLoCo(job, of.model, of.optimizer, sync_every=2, schedulers=[of.scheduler])
            batches, said = loader, "LinearLR in schedulers= was stepped by the program as well"
        else:
            training = perdure.DataParallel(job, of.model, of.optimizer, shared=[of.scheduler])
            batches, said = training.batches(loader), "the Sampler starts a second pass"
        with refuses(said), training:
            for _ in job.epochs(2) if wrong == "twice" else range(2):
                for x in batches if wrong != "epochs" else training.batches(loader):
                    of.step(x)
        job.end_job()


def test_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guide" / "accelerate.md").read_text()
    by_two(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], tmp_path)


def test_before_the_import(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import accelerate\naccelerate.Accelerator(cpu=True)")
    command = [sys.executable, "-m", "perdure", "--as-slot-of", "1", "", "train.py"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "create an Accelerator after `import perdure.accelerate`" in done.stderr.splitlines()[-1]
