"""Tests with lightning.Trainer, which `make check-torch` installs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL, Cluster
from launched import Death, begins, hash_of, kills, launch, lives, resume

import perdure

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")
import lightning.pytorch as pl  # noqa: E402
from lightning.pytorch.callbacks import (  # noqa: E402
    EarlyStopping,
    GradientAccumulationScheduler,
    StochasticWeightAveraging,
)
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402

import perdure.lightning  # noqa: E402

#: A network with dropout and batch normalisation, gradient accumulation, a falling rate, and validation. Each slot has
#: 150 samples in batches of 5, two per step: an epoch has 15 steps.
TRAIN = """
import hashlib, json, os, sys
import lightning as L
import perdure.lightning
import torch
from torch import nn
from torch.utils.data import DataLoader
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
torch.manual_seed(rank)
x = torch.randn(300, 4, generator=torch.Generator().manual_seed(7))
part = [(i, x[i]) for i in range(rank, 300, 2)]


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.rates = {}

    def on_train_start(self):
        self.begun = self.trainer.global_step

    def training_step(self, batch, _):
        counts.inc(batch[0].numpy(), torch.ones(len(batch[0]), 1).numpy())
        self.rates[self.trainer.global_step] = self.optimizers().param_groups[0]["lr"]
        return (self.layers(batch[1]) ** 2).mean()

    def validation_step(self, batch, _):
        self.log("loss", (self.layers(batch[1]) ** 2).mean() + torch.rand(()))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.1)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), "interval": "step"}]


class Total(L.Callback):
    def on_train_end(self, *_):
        self.of = counts.get_run(0, 300)


with perdure.start() as job:
    counts = job.table("counts", 300, dim=1, rule=perdure.Add())
    model = Module()
    total = Total()
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_epochs=3, accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, callbacks=[total, CALLBACK],
    )
    trainer.fit(model, DataLoader(part, batch_size=5, shuffle=True), DataLoader(part[:10], batch_size=5))
    clock = job.now
h = hashlib.sha256()
for name, v in sorted(model.state_dict().items()):
    h.update(v.numpy().tobytes())
said = {
    "model": h.hexdigest(), "step": trainer.global_step, "epoch": trainer.current_epoch, "clock": clock,
    "least": int(total.of.min()), "most": int(total.of.max()), "seen": int(total.of.sum()),
    "rates": model.rates, "begun": model.begun,
}
with open(f"{sys.argv[1]}.{rank}", "w") as f:
    json.dump(said, f)
"""


@pytest.mark.parametrize("overlap", [0, 3])
def test_same_model_through_kills(tmp_path: Path, overlap: int) -> None:
    program = TRAIN.replace("CALLBACK", f"perdure.lightning.DiLoCoCallback(job, sync_every=5, overlap={overlap})")
    calm = launch(tmp_path, "calm", program)
    storm = ("server:0@clock:2", "worker:0@clock:3", "worker:1@clock:7")
    torn = launch(tmp_path, "torn", program, "--recovery", "resend:20", *(f"--fault=kill:{kill}" for kill in storm))
    assert kills(tmp_path, "torn") == len(storm)
    for of in (*calm, *torn):
        assert (of["step"], of["epoch"], of["clock"]) == (45, 3, 10)  # the first clock was for the weights
        assert (of["least"], of["most"], of["seen"]) == (3, 3, 900)
        for step, rate in of["rates"].items():
            assert rate == pytest.approx(0.1 * 0.9 ** int(step)), step
    assert [of["begun"] for of in calm] == [0, 0]
    assert torn[0]["begun"] >= 10
    assert torn[1]["begun"] >= 30
    assert {of["model"] for of in (*calm, *torn)} == {calm[0]["model"]}


def test_same_model_with_its_own_optimizer(tmp_path: Path) -> None:
    program = TRAIN.replace("CALLBACK", "perdure.lightning.DataParallelCallback(job)")
    preload = ("--preload", "torch,lightning.pytorch,perdure.torch")
    calm = launch(tmp_path, "calm", program, *preload)
    storm = ("worker:0@clock:9", "server:0@clock:20", "worker:1@clock:32")
    faults = [f"--fault=kill:{kill}" for kill in storm]
    torn = launch(tmp_path, "torn", program, *preload, "--recovery", "resend:7", *faults)
    assert kills(tmp_path, "torn") >= len(storm)
    for of in (*calm, *torn):
        assert (of["step"], of["epoch"], of["least"], of["most"], of["seen"]) == (45, 3, 3, 3, 900)
        for step, rate in of["rates"].items():
            assert rate == pytest.approx(0.1 * 0.9 ** int(step)), step
    assert torn[0]["begun"] > 0
    assert {of["model"] for of in (*calm, *torn)} == {calm[0]["model"]}


class Recorder(pl.Callback):
    """Records each step, and simulates the program's death after a step or after the last one."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.ids: list[int] = []
        self.steps: dict[int, tuple[float, list[int]]] = {}  # rate and samples of each step

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, _: int) -> None:
        self.rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.ids += batch[0].tolist()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, _: int) -> None:
        if trainer.global_step > max(self.steps, default=0) and not trainer.fit_loop._should_accumulate():
            self.steps[trainer.global_step], self.ids = (self.rate, self.ids), []
            if trainer.global_step == self.at:
                raise Death

    def on_train_end(self, *_: Any) -> None:
        if self.at == 9999:
            raise Death


class Numbers(Dataset):
    """A dataset whose samples contain their own number."""

    def __init__(self, count: int) -> None:
        self.x = torch.randn(count, 4, generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[int, Any]:
        return i, self.x[i]


class Stream(IterableDataset):
    """The same dataset without a length."""

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        of = Numbers(30)
        return (of[i] for i in range(30))


class Module(pl.LightningModule):
    def __init__(self, scheduler: str) -> None:
        super().__init__()
        self.scheduler = scheduler
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))

    def training_step(self, batch: Any, _: int) -> Any:
        return (self.layers(batch[1]) ** 2).mean()

    def validation_step(self, batch: Any, _: int) -> None:
        self.log(
            "loss", (self.layers(batch[1]) ** 2).mean() + torch.rand(())
        )  # draws from the same random numbers as training

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 0.1)
        if self.scheduler == "estimated":  # creates the loaders before their state is loaded
            steps = self.trainer.estimated_stepping_batches
            one = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps + 1)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": one, "interval": "step"}}
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": self.scheduler}}


def trainer_of(folder: Path, callbacks: list[Any], **settings: Any) -> pl.Trainer:
    return pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
        **settings,
    )


def loader_of(kind: str) -> Any:
    """Return a loader of 30 samples in batches of 4: an epoch has 8 batches."""
    return {
        "plain": lambda: DataLoader(Numbers(30), batch_size=4, shuffle=True),
        "stateful": lambda: StatefulDataLoader(Numbers(30), batch_size=4, shuffle=True),
        "persistent": lambda: StatefulDataLoader(
            Numbers(30), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True
        ),
        "stream": lambda: DataLoader(Stream(), batch_size=4),
        "drawn": lambda: DataLoader(  # draws indices 32 at a time, in the middle of an epoch
            Numbers(30),
            batch_size=4,
            sampler=RandomSampler(Numbers(30), True, 40, torch.Generator().manual_seed(5)),
        ),
        "noisy": lambda: DataLoader(Numbers(30), batch_size=4, shuffle=True, collate_fn=noisy),
    }[kind]()


@pytest.mark.parametrize(
    ("kind", "scheduler", "settings", "deaths", "steps"),
    [
        ("plain", "step", {"max_epochs": 3}, (4, 7, 9, 10, 16, 18, 9999), 24),
        ("plain", "epoch", {"max_steps": 17}, (3, 10, 9999), 17),
        ("plain", "step", {"max_epochs": 2, "accumulate_grad_batches": 3}, (1, 4, 5), 6),
        ("stateful", "epoch", {"max_epochs": 3}, (4, 9, 10, 16, 17, 20, 9999), 24),
        ("stateful", "step", {"max_steps": 21, "accumulate_grad_batches": 2}, (4, 5, 11, 15), 21),
        ("stream", "step", {"max_epochs": 2}, (4, 9, 10), 16),
        ("plain", "step", {"max_epochs": 2, "plugins": "float16"}, (3, 11), 16),
        ("plain", "estimated", {"max_epochs": 2}, (3, 9), 16),
        ("stateful", "estimated", {"max_epochs": 2}, (3, 9), 16),
        ("persistent", "estimated", {"max_epochs": 2}, (5,), 16),
    ],
)
def test_goes_on(
    tmp_path: Path, kind: str, scheduler: str, settings: dict[str, Any], deaths: tuple[int, ...], steps: int
) -> None:
    ends = []
    for name, fates in (("calm", ()), ("torn", deaths)):
        cluster = Cluster(tmp_path / name, "--workers", "1", "--servers", "1", "--clocks", "1000")
        made: dict[int, tuple[float, list[int]]] = {}
        begun = 0
        for at in (*fates, None):
            torch.manual_seed(1)
            module, recorder = Module(scheduler), Recorder(at)
            with contextlib.nullcontext() if at is None else pytest.raises(Death), cluster.join(0) as job:
                if "plugins" in settings:  # the scale doubles at each step until it overflows and a step is skipped
                    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=1)
                    settings["plugins"] = [MixedPrecision("16-mixed", "cpu", scaler)]
                trainer = trainer_of(
                    tmp_path, [recorder, perdure.lightning.DiLoCoCallback(job, sync_every=2)], **settings
                )
                trainer.fit(module, loader_of(kind), DataLoader(Numbers(8), batch_size=4))
            print(name, at, recorder.steps)
            assert min(recorder.steps, default=steps + 1) == begun + 1, at
            made |= recorder.steps
            begun = 0 if at is None else min(steps, (at - 1) // 2 * 2)
        cluster.end()
        assert trainer.global_step == steps
        assert sorted(made) == list(range(1, steps + 1))
        ends.append((made, hash_of(module)))
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("kind", "settings", "epoch", "deaths", "steps"),
    [
        ("plain", {"max_epochs": 2}, 8, (4, 5, 9, 10, 14, 9999), 16),
        ("stateful", {"max_steps": 15, "accumulate_grad_batches": 2}, 4, (3, 5, 9, 14), 15),
        ("stateful", {"max_epochs": 2}, 8, (4, 8, 9, 15), 16),
        ("stream", {"max_epochs": 1}, 8, (4, 8), 8),
        ("plain", {"max_epochs": 1, "plugins": "float16"}, 8, (3, 5, 8), 8),
    ],
)
def test_goes_on_from_drafts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    settings: dict[str, Any],
    epoch: int,
    deaths: tuple[int, ...],
    steps: int,
) -> None:
    monkeypatch.setattr("perdure._draft.SHARE", 1e9)  # so that each step writes a draft
    ends = []
    for name, fates in (("calm", ()), ("torn", deaths)):
        cluster = Cluster(tmp_path / name, "--workers", "1", "--servers", "1", "--clocks", "1000")
        if fates:
            monkeypatch.setenv("PERDURE_RUN", str(tmp_path / name / "run"))
        made: dict[int, tuple[float, list[int]]] = {}
        begun = 0
        for at in (*fates, None):
            torch.manual_seed(1)
            module, recorder, tokens = Module("step"), Recorder(at), perdure.Count()
            module.layers.register_forward_hook(
                lambda layers, of, _, tokens=tokens: tokens.add(len(of[0])) if layers.training else None
            )
            with contextlib.nullcontext() if at is None else pytest.raises(Death), cluster.join(0) as job:
                if "plugins" in settings:
                    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=1)
                    settings["plugins"] = [MixedPrecision("16-mixed", "cpu", scaler)]
                outer = perdure.lightning.DiLoCoCallback(job, sync_every=5, weights=tokens)
                trainer = trainer_of(tmp_path, [recorder, outer], **settings)
                trainer.fit(module, loader_of(kind), DataLoader(Numbers(8), batch_size=4))
            assert min(recorder.steps, default=steps + 1) == begun + 1, at
            made |= recorder.steps
            begun = 0 if at is None else min(steps, begins(at, 5, epoch))
        cluster.end()
        assert sorted(made) == list(range(1, steps + 1))
        ends.append((made, hash_of(module)))
    assert ends[0] == ends[1]


class Measured(Module):
    """Lowers its rate by the mean loss of an epoch, and draws random numbers while it reads."""

    def training_step(self, batch: Any, _: int) -> Any:
        loss = super().training_step(batch, _)
        self.log("train", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 0.1)
        kept = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", 0.5, patience=0)
        how = {"scheduler": kept, "monitor": self.scheduler, "interval": "epoch"}
        if self.scheduler == "loss":  # of the last validation, at each step
            how |= {"interval": "step", "frequency": 3, "strict": False}
        return {"optimizer": optimizer, "lr_scheduler": how}


class Both(Module):
    """Two optimizers, under manual optimization."""

    automatic_optimization = False

    def training_step(self, batch: Any, _: int) -> Any:
        first, second = self.optimizers()
        first.zero_grad()
        second.zero_grad(set_to_none=False)
        self.manual_backward((self.layers(batch[1]) ** 2).mean())
        first.step()
        second.step()
        self.lr_schedulers().step()

    def configure_optimizers(self) -> Any:
        first = torch.optim.SGD(self.layers[0].parameters(), 0.1, momentum=0.9)
        second = torch.optim.AdamW([p for layer in self.layers[1:] for p in layer.parameters()], 0.01)
        return [first, second], [torch.optim.lr_scheduler.ExponentialLR(first, 0.9)]


def noisy(samples: list[Any]) -> Any:
    """Draw random numbers while batches are read, like a collator that masks."""
    ids, x = torch.utils.data.default_collate(samples)
    return ids, x * torch.rand(4)


@pytest.mark.parametrize(
    ("kind", "module", "settings", "deaths", "steps"),
    [
        ("noisy", lambda: Module("step"), {"max_epochs": 4, "limit_train_batches": 6}, (4, 8, 9, 16, 9999), 24),
        ("plain", lambda: Module("epoch"), {"max_steps": 17, "precision": "bf16-mixed"}, (3, 10, 9999), 17),
        ("stateful", lambda: Module("step"), {"max_steps": 21, "accumulate_grad_batches": 2}, (4, 7, 15), 21),
        ("persistent", lambda: Module("estimated"), {"max_epochs": 3}, (5, 16), 24),
        ("stream", lambda: Module("step"), {"max_epochs": 2}, (5, 8, 12), 16),
        ("drawn", lambda: Module("step"), {"max_epochs": 2}, (9, 10, 11, 19), 20),
        ("plain", lambda: Module("step"), {"max_epochs": 2, "plugins": "float16"}, (5, 11), 16),
        ("plain", lambda: Measured("train"), {"max_epochs": 4}, (5, 8, 14, 30), 32),
        ("plain", lambda: Measured("loss"), {"max_epochs": 3, "val_check_interval": 4}, (4, 8, 13, 14), 24),
        ("plain", lambda: Both(""), {"max_epochs": 2}, (10, 24), 16),
        ("plain", lambda: Module("step"), {"max_epochs": 4, "scheduling": {0: 1, 2: 2}}, (9, 19, 23), 24),
    ],
)
def test_data_parallel_goes_on(
    tmp_path: Path, kind: str, module: Any, settings: dict[str, Any], deaths: tuple[int, ...], steps: int
) -> None:
    ends = []
    for name, fates in (("calm", ()), ("torn", deaths)):
        made: dict[int, tuple[float, list[int]]] = {}
        begun = []

        def life(job: perdure.Job, number: int) -> Any:
            torch.manual_seed(1)
            of, recorder = module(), Recorder(fates[number] if number < len(fates) else None)  # noqa: B023
            given = dict(settings)
            if "plugins" in settings:
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=1)
                given["plugins"] = [MixedPrecision("16-mixed", "cpu", scaler)]
            callbacks = [recorder, perdure.lightning.DataParallelCallback(job)]
            if "scheduling" in given:
                callbacks.append(GradientAccumulationScheduler(given.pop("scheduling")))
            trainer = trainer_of(tmp_path, callbacks, **given)
            try:
                trainer.fit(of, loader_of(kind), DataLoader(Numbers(8), batch_size=4))
            finally:
                begun.append(min(recorder.steps, default=9999))  # noqa: B023
                made.update(recorder.steps)  # noqa: B023
            assert trainer.global_step == steps * len(trainer.optimizers)
            return of

        of = lives(tmp_path / name, life, len(fates), "--recovery", "checkpoint:2")
        assert begun[0] == len(of.trainer.optimizers)
        assert not fates or max(begun) > begun[0]
        assert len(made) == steps
        ends.append((made, of.trainer.callback_metrics, hash_of(of)))
    assert ends[0] == ends[1]


def test_as_the_trainer_alone(tmp_path: Path) -> None:
    """One slot trains like the trainer without perdure."""
    hashes = []
    for alone in (True, False):
        with contextlib.nullcontext() if alone else perdure.start(out=tmp_path / "run", args=SMALL) as job:
            torch.manual_seed(1)
            module, callbacks = Module("epoch"), [] if alone else [perdure.lightning.DataParallelCallback(job)]
            trainer = trainer_of(tmp_path, callbacks, max_epochs=2, accumulate_grad_batches=3, gradient_clip_val=0.5)
            torch.manual_seed(2)
            trainer.fit(module, loader_of("plain"), DataLoader(Numbers(8), batch_size=4))
        hashes.append(hash_of(module))
    assert hashes[0] == hashes[1]


RESUMED = """
import os, sys
from pathlib import Path
import perdure.lightning, torch
sys.path[:0] = [os.environ["TESTS"], os.environ["TESTS"] + "/torch"]
from test_lightning import Module, hash_of, loader_of, trainer_of
torch.set_num_threads(1)
with perdure.start() as job:
    torch.manual_seed(1)
    module = Module("step")
    trainer = trainer_of(Path.cwd(), [perdure.lightning.DataParallelCallback(job)], SETTINGS)
    trainer.fit(module, loader_of("plain"))
open(sys.argv[1], "w").write(hash_of(module))
"""


@pytest.mark.parametrize(("name", "first", "whole"), [("max_epochs", 2, 3), ("max_steps", 11, 24)])
def test_resumed_with_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, first: int, whole: int) -> None:
    monkeypatch.setenv("TESTS", str(Path(__file__).parents[1]))
    hashes = {}
    for end in (first, whole):
        with perdure.start(out=tmp_path / str(end), recovery="checkpoint:4", clocks=1000, args=SMALL) as job:
            torch.manual_seed(1)
            module = Module("step")
            trainer = trainer_of(tmp_path, [perdure.lightning.DataParallelCallback(job)], **{name: end})
            trainer.fit(module, loader_of("plain"))
        hashes[end] = hash_of(module)
    assert resume(tmp_path, str(first), RESUMED.replace("SETTINGS", f"{name}={whole}")) == hashes[whole]


class Terminated(Module):
    """Sends SIGTERM once to its own process, in the middle of a given step."""

    at: int | None = None

    def training_step(self, batch: Any, of: int) -> Any:
        loss = super().training_step(batch, of)
        if self.trainer.global_step == self.at:
            self.at = None
            os.kill(os.getpid(), signal.SIGTERM)
        return loss


def test_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process continues from the last step, although no draft was due."""
    monkeypatch.setattr("perdure._draft.Drafts.due", lambda _: False)
    monkeypatch.setattr("perdure._draft.SHARE", 1e9)  # so that drafts are written however short a step is

    def told(*_: Any) -> None:
        raise Death

    ends, begun = [], []
    before = signal.signal(signal.SIGTERM, told)
    for name, fates in (("calm", ()), ("torn", (3, 6, 12))):
        cluster = Cluster(tmp_path / name, "--workers", "1", "--servers", "1", "--clocks", "1000")
        monkeypatch.setenv("PERDURE_RUN", str(tmp_path / name / "run"))
        made: dict[int, tuple[float, list[int]]] = {}
        for at in (*fates, None):
            torch.manual_seed(1)
            module, recorder = Terminated("step"), Recorder(None)
            module.at = at
            with contextlib.nullcontext() if at is None else pytest.raises(Death), cluster.join(0) as job:
                outer = perdure.lightning.DiLoCoCallback(job, sync_every=5)
                trainer_of(tmp_path, [recorder, outer], max_epochs=2).fit(module, loader_of("stateful"))
            begun.append(min(recorder.steps) - 1)
            made |= recorder.steps
        cluster.end()
        ends.append((made, hash_of(module)))
    signal.signal(signal.SIGTERM, before)
    assert begun == [0, 0, 3, 6, 12]
    assert ends[0] == ends[1]


KILLED = """
import json, os, signal, sys
from pathlib import Path
import perdure.lightning, perdure._draft
import torch
sys.path[:0] = [os.environ["TESTS"], os.environ["TESTS"] + "/torch"]
from launched import hash_of
from test_lightning import Module, Recorder, loader_of, trainer_of
perdure._draft.SHARE = 1e9
torch.set_num_threads(1)
out, rank = Path(sys.argv[1]), int(os.environ["PERDURE_SLOT"])


class Killed(Recorder):
    def on_train_batch_start(self, trainer, *of):
        if not os.path.exists(f"{out}.begun.{rank}.{os.getpid()}"):
            Path(f"{out}.begun.{rank}.{os.getpid()}").write_text(str(trainer.global_step))
        super().on_train_batch_start(trainer, *of)

    def on_train_batch_end(self, trainer, *of):
        super().on_train_batch_end(trainer, *of)
        now = trainer.global_step
        with open(f"{out}.steps.{rank}", "a") as f:
            f.write(json.dumps([now, *self.steps[now]]) + "\\n")
        once = Path(f"{out}.killed")
        if "torn" in out.name and rank == 1 and now == 10 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)


with perdure.start() as job:
    torch.manual_seed(rank)
    module = Module("step")
    outer = perdure.lightning.DiLoCoCallback(job, sync_every=7)
    trainer_of(out.parent / str(rank), [Killed(None), outer], max_steps=14).fit(module, loader_of("stateful"))
steps = [json.loads(line) for line in open(f"{out}.steps.{rank}")]
begun = sorted(int(path.read_text()) for path in out.parent.glob(f"{out.name}.begun.{rank}.*"))
said = {"model": hash_of(module), "made": {s[0]: s[1:] for s in steps}, "count": len(steps), "begun": begun}
Path(f"{out}.{rank}").write_text(json.dumps(said))
"""


def test_killed_between_outer_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS", str(Path(__file__).parents[1]))
    calm, torn = launch(tmp_path, "calm", KILLED), launch(tmp_path, "torn", KILLED)
    assert [of["begun"] for of in (*calm, *torn)] == [[0], [0], [0], [0, 9]]  # not 7, the step of the outer step
    assert [of["count"] for of in (*calm, *torn)] == [14, 14, 14, 15]  # step 10 was repeated
    assert [of["made"] for of in calm] == [of["made"] for of in torn]
    assert {of["model"] for of in (*calm, *torn)} == {calm[0]["model"]}


def test_other_callbacks_go_on(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "--workers", "1", "--servers", "1", "--clocks", "1000")
    for at in (20, None):
        early = EarlyStopping("loss", patience=3, min_delta=99)  # no later loss counts as better than the first
        torch.manual_seed(1)
        with contextlib.nullcontext() if at is None else pytest.raises(Death), cluster.join(0) as job:
            callbacks = [early, Recorder(at), perdure.lightning.DiLoCoCallback(job, sync_every=2)]
            trainer = trainer_of(tmp_path, callbacks, max_epochs=10)
            trainer.fit(Module("step"), loader_of("plain"), DataLoader(Numbers(8), batch_size=4))
    assert trainer.global_step == 4 * 8
    cluster.end()


def test_data_parallel_stops_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that takes over after the last step does not train again."""
    keep = perdure.DataParallel._keep_end

    def keep_and_die(of: Any) -> None:
        keep(of)
        monkeypatch.undo()
        raise Death

    monkeypatch.setattr(perdure.DataParallel, "_keep_end", keep_and_die)

    def life(job: perdure.Job, number: int) -> Any:
        early = EarlyStopping("loss", patience=3, min_delta=99)
        torch.manual_seed(1)
        callbacks = [early, Recorder((20, None, None)[number]), perdure.lightning.DataParallelCallback(job)]
        trainer = trainer_of(tmp_path, callbacks, max_epochs=10)
        trainer.fit(Module("step"), loader_of("plain"), DataLoader(Numbers(8), batch_size=4))
        return trainer

    assert lives(tmp_path, life, 2, "--recovery", "checkpoint:1").global_step == 4 * 8


ENDS = """
import json, os, sys
from pathlib import Path
import perdure.lightning
import torch
sys.path[:0] = [os.environ["TESTS"], os.environ["TESTS"] + "/torch"]
from launched import hash_of
from test_lightning import Both, Module, loader_of, trainer_of
torch.set_num_threads(1)
out, rank = Path(sys.argv[1]), int(os.environ["PERDURE_SLOT"])
with perdure.start() as job:
    torch.manual_seed(rank)
    module = Both("") if "manual" in out.name else Module("step")
    trainer = trainer_of(out.parent / str(rank), [perdure.lightning.DataParallelCallback(job)], max_epochs=2 + rank)
    trainer.fit(module, loader_of("plain"))
Path(f"{out}.{rank}").write_text(json.dumps([trainer.global_step // len(trainer.optimizers), hash_of(module)]))
"""


def test_another_slot_ends_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS", str(Path(__file__).parents[1]))
    for name in ("automatic", "manual"):
        first, second = launch(tmp_path, name, ENDS)
        assert first == second
        assert first[0] == 16


def test_job_ends_first(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "--workers", "1", "--servers", "1", "--clocks", "3")
    with cluster.join(0) as job:
        trainer = trainer_of(tmp_path, [perdure.lightning.DiLoCoCallback(job, sync_every=2)], max_epochs=5)
        trainer.fit(Module("step"), loader_of("plain"))
    assert trainer.global_step == 6  # the steps of two clocks, and those after the job's end
    cluster.end()


class Two(Module):
    automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), 0.1), torch.optim.SGD(self.parameters(), 0.2)]


class Plateau(Module):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "loss"}}


def test_refused(tmp_path: Path) -> None:
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:

        def fit(module: Any, loader: Any = None, **settings: Any) -> None:
            path = settings.pop("ckpt_path", None)
            callback = perdure.lightning.DiLoCoCallback(job, sync_every=2)
            trainer = trainer_of(tmp_path, [callback], max_epochs=1, **settings)
            trainer.fit(module, loader or loader_of("plain"), ckpt_path=path)

        trainer = trainer_of(tmp_path, [], max_epochs=1)
        trainer.fit(Module("step"), loader_of("plain"))
        trainer.save_checkpoint(tmp_path / "some.ckpt")
        with pytest.raises(perdure.UsageError, match="ckpt_path"):
            fit(Module("step"), ckpt_path=tmp_path / "some.ckpt")
        before = dict(os.environ)
        with pytest.raises(perdure.UsageError, match="DDPStrategy"):
            fit(Module("step"), strategy="ddp")
        torch.distributed.destroy_process_group()
        for name in os.environ.keys() - before.keys():  # variables such as MASTER_ADDR, set by the strategy
            del os.environ[name]
        with pytest.raises(perdure.UsageError, match="the module has 2 optimizers"):
            fit(Two("step"))
        with pytest.raises(perdure.UsageError, match="ReduceLROnPlateau"):
            fit(Plateau("step"))
        with pytest.raises(perdure.UsageError, match="some loaders have state_dict and some do not"):
            fit(Module("step"), [loader_of("plain"), loader_of("stateful")])
        job.end_job()


def test_order_of_its_own_is_refused(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(loader_of("plain").dataset, shuffle=True, generator=torch.Generator())
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        trainer = trainer_of(tmp_path, [perdure.lightning.DiLoCoCallback(job, sync_every=2)], max_epochs=1)
        with pytest.raises(perdure.UsageError, match="the loader's sampler has a generator of its own"):
            trainer.fit(Module("step"), loader)
        job.end_job()


class Lazy(Both):
    """Makes a step of its optimizers only now and then."""

    def training_step(self, batch: Any, _: int) -> Any:
        self.manual_backward((self.layers(batch[1]) ** 2).mean())


class Gan(Both):
    def training_step(self, batch: Any, _: int) -> Any:
        for optimizer in self.optimizers():
            self.manual_backward((self.layers(batch[1]) ** 2).mean())
            optimizer.step()


class Iterating(Module):
    def training_step(self, dataloader_iter: Any) -> Any:
        return super().training_step(next(dataloader_iter)[0], 0)


class Quasi(Module):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters())


class Hiding(pl.Callback):
    def on_save_checkpoint(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("module", "loader", "settings", "said"),
    [
        (Lazy, "plain", {}, "made no step of an optimizer"),
        (Gan, "plain", {}, "second backward pass"),
        (Iterating, "plain", {}, "instead of dataloader_iter"),
        (Quasi, "plain", {}, "LBFGS"),
        (Module, "two", {}, "2 training loaders"),
        (Module, "plain", {"callbacks": [Hiding()]}, "Hiding has its state in on_save_checkpoint"),
        (Module, "plain", {"callbacks": [StochasticWeightAveraging(0.1)]}, "omit StochasticWeightAveraging"),
        (Module, "plain", {"reload_dataloaders_every_n_epochs": 1}, "omit reload_dataloaders_every_n_epochs"),
    ],
)
def test_data_parallel_refused(tmp_path: Path, module: Any, loader: str, settings: dict[str, Any], said: str) -> None:
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        given = {"max_epochs": 2} | settings
        callbacks = [*given.pop("callbacks", ()), perdure.lightning.DataParallelCallback(job)]
        loaders = [loader_of("plain"), loader_of("plain")] if loader == "two" else loader_of(loader)
        with pytest.raises(perdure.UsageError, match=said):
            trainer_of(tmp_path, callbacks, **given).fit(module("step"), loaders)
        job.end_job()


def test_without_lightning() -> None:
    program = "import sys; sys.modules['lightning'] = None; import perdure.lightning"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("ImportError: perdure.lightning needs lightning")
