"""Tests with transformers.Trainer, which `make check-torch` installs."""

from __future__ import annotations

import contextlib
import os
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
transformers = pytest.importorskip("transformers")
import perdure.hf  # noqa: E402

#: A transformer with dropout, gradient accumulation, a falling rate, and evaluations that draw random numbers. Each
#: slot has 150 samples in batches of 5, two per step: an epoch has 15 steps.
TRAIN = """
import hashlib, json, os, sys
import perdure.hf
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
torch.set_num_threads(1)
rank = int(os.environ["PERDURE_SLOT"])
torch.manual_seed(rank)
g = torch.Generator().manual_seed(7)
tokens = torch.randint(20, (300, 8), generator=g)
part = [{"id": i, "input_ids": tokens[i], "labels": tokens[i]} for i in range(rank, 300, 2)]
model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2))


class Counting(Trainer):
    def compute_loss(self, model, inputs, **of):
        ids = inputs.pop("id")
        if model.training:
            counts.inc(ids.numpy(), torch.ones(len(ids), 1).numpy())
        torch.rand(1)
        return super().compute_loss(model, inputs, **of)


class Total(TrainerCallback):
    def on_train_end(self, *_, **__):
        self.of = counts.get_run(0, 300)


with perdure.start() as job:
    counts = job.table("counts", 300, dim=1, rule=perdure.Add())
    args = TrainingArguments(
        "out", per_device_train_batch_size=5, gradient_accumulation_steps=2, learning_rate=1e-2, logging_steps=4,
        remove_unused_columns=False, report_to=[], disable_tqdm=True, eval_strategy="steps", eval_steps=6,
        seed=3 + rank, use_cpu=True, num_train_epochs=3,
    )
    trainer = Counting(model, args, train_dataset=part, eval_dataset=part[:10], callbacks=[total := Total()])
    CALLBACK.train(trainer)
    clock = job.now
h = hashlib.sha256()
for name, v in sorted(model.state_dict().items()):
    h.update(v.numpy().tobytes())
said = {
    "model": h.hexdigest(), "step": trainer.state.global_step, "epoch": trainer.state.epoch, "clock": clock,
    "least": int(total.of.min()), "most": int(total.of.max()), "seen": int(total.of.sum()),
    "rates": {e["step"]: e["learning_rate"] for e in trainer.state.log_history if "learning_rate" in e},
    "begun": trainer._initial_global_step, "log": trainer.state.log_history[:-1],
}
with open(f"{sys.argv[1]}.{rank}", "w") as f:
    json.dump(said, f)
"""


@pytest.mark.parametrize("overlap", [0, 3])
def test_same_model_through_kills(tmp_path: Path, overlap: int) -> None:
    program = TRAIN.replace("CALLBACK", f"perdure.hf.DiLoCoCallback(job, sync_every=5, overlap={overlap})")
    calm = launch(tmp_path, "calm", program)
    storm = ("server:0@clock:2", "worker:0@clock:3", "worker:1@clock:7")
    torn = launch(tmp_path, "torn", program, "--recovery", "resend:20", *(f"--fault=kill:{kill}" for kill in storm))
    assert kills(tmp_path, "torn") == len(storm)
    for of in (*calm, *torn):
        assert (of["step"], of["epoch"], of["clock"]) == (45, 3, 10)  # the first clock was for the weights
        assert (of["least"], of["most"], of["seen"]) == (3, 3, 900)
        for step, rate in of["rates"].items():
            assert rate == pytest.approx(1e-2 * (1 - (int(step) - 1) / 45)), step
    assert [of["begun"] for of in calm] == [0, 0]
    assert torn[0]["begun"] >= 10
    assert torn[1]["begun"] >= 30
    assert {of["model"] for of in (*calm, *torn)} == {calm[0]["model"]}


def test_same_model_with_its_own_optimizer(tmp_path: Path) -> None:
    program = TRAIN.replace("CALLBACK", "perdure.hf.DataParallelCallback(job)")
    preload = ("--preload", "torch,transformers.trainer,perdure.torch")
    calm = launch(tmp_path, "calm", program, *preload)
    storm = ("worker:0@clock:9", "server:0@clock:20", "worker:1@clock:32")
    faults = [f"--fault=kill:{kill}" for kill in storm]
    torn = launch(tmp_path, "torn", program, *preload, "--recovery", "resend:7", *faults)
    assert kills(tmp_path, "torn") >= len(storm)
    for of in (*calm, *torn):
        assert (of["step"], of["epoch"], of["least"], of["most"], of["seen"]) == (45, 3, 3, 3, 900)
    assert {of["model"] for of in (*calm, *torn)} == {calm[0]["model"]}
    for a, b in zip(calm, torn, strict=True):
        assert losses(a["log"]) == losses(b["log"])


def losses(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a trainer's log without its measured times."""
    return [{k: v for k, v in of.items() if "runtime" not in k and "per_second" not in k} for of in log]


class Recorder(transformers.TrainerCallback):
    """Records each step, and simulates the program's death after a step or after the last one."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.steps: dict[int, tuple[float, list[int]]] = {}  # rate and samples of each step

    def on_step_begin(self, args: Any, state: Any, control: Any, **of: Any) -> None:
        self.rate = of["lr_scheduler"].get_last_lr()[0]

    def on_step_end(self, args: Any, state: Any, control: Any, **of: Any) -> None:
        self.steps[state.global_step] = (self.rate, of["model"].seen)
        of["model"].seen = []
        if state.global_step == self.at:
            raise Death

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.at == 9999:
            raise Death


class Stream(torch.utils.data.IterableDataset):
    """A dataset without a length."""

    def __init__(self, end: int) -> None:
        self.end = end

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(data(self.end))


def data(count: int) -> list[dict[str, Any]]:
    """Return samples of unequal lengths. The first value of each is its number."""
    g = torch.Generator().manual_seed(7)
    return [{"x": torch.randn(4, generator=g), "input_ids": [i] * (1 + i % 3)} for i in range(count)]


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"x": torch.stack([s["x"] for s in samples]), "id": torch.tensor([s["input_ids"][0] for s in samples])}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        )
        self.seen: list[int] = []

    def forward(self, x: Any, id: Any) -> dict[str, Any]:
        self.seen += id.tolist() if self.training else []
        return {"loss": (self.layers(x) ** 2).mean()}


class Shuffled(torch.utils.data.Sampler[int]):
    """A sampler that draws from a generator of its own, like that of TRL's GRPOTrainer."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.generator = torch.Generator().manual_seed(5)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.length, generator=self.generator).tolist()


class Shuffling(transformers.Trainer):
    def _get_train_sampler(self, *_: Any) -> Any:
        return Shuffled(len(self.train_dataset))


class Varied(list[Any]):
    """Samples that differ from epoch to epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, i: Any) -> Any:
        of = super().__getitem__(i)
        return of | {"x": of["x"] * (1 + self.epoch)}


def collate_with_noise(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Draw random numbers while batches are read, like a collator that masks."""
    of = collate(samples)
    return of | {"x": of["x"] * torch.rand(4)}


def trainer_of(
    folder: Path,
    recorder: Any,
    end: int = 24,
    stream: bool = False,
    kind: type[list[Any]] = list,
    collator: Any = collate,
    scaler: float = 0,
    trains: type[transformers.Trainer] = transformers.Trainer,
    **settings: Any,
) -> Any:
    """Return the trainer of a program that has just started."""
    torch.manual_seed(1)
    args = transformers.TrainingArguments(
        str(folder / "out"),
        **{
            "per_device_train_batch_size": 4,
            "learning_rate": 0.1,
            "remove_unused_columns": False,
            "report_to": [],
            "disable_tqdm": True,
            "save_strategy": "no",
            "use_cpu": True,
            "label_names": ["id"],  # so that evaluations compute the loss
            "prediction_loss_only": True,
            **settings,
        },
    )
    dataset = Stream(end) if stream else kind(data(end))
    trainer = trains(
        Model(), args, train_dataset=dataset, eval_dataset=data(4), data_collator=collator, callbacks=[recorder]
    )
    if scaler:  # accelerate creates one only for a GPU
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scaler, growth_interval=1)
    return trainer


@pytest.mark.parametrize(
    ("settings", "deaths", "steps"),
    [
        ({"max_steps": 17}, (4, 6, 12, 16, 9999), 17),
        ({"num_train_epochs": 2, "gradient_accumulation_steps": 4}, (1, 3), 4),
        ({"num_train_epochs": 3, "trains": Shuffling}, (4, 10, 14), 18),
        ({"max_steps": 17, "train_sampling_strategy": "group_by_length", "lr_scheduler_type": "cosine"}, (8, 15), 17),
        ({"max_steps": 11, "stream": True, "end": 100}, (1, 4, 9999), 11),
    ],
)
def test_goes_on(tmp_path: Path, settings: dict[str, Any], deaths: tuple[int, ...], steps: int) -> None:
    ends = []
    for name, fates in (("calm", ()), ("torn", deaths)):
        cluster = Cluster(tmp_path / name, "--workers", "1", "--servers", "1", "--clocks", "1000")
        made: dict[int, tuple[float, list[int]]] = {}
        begun = 0
        for at in (*fates, None):
            recorder = Recorder(at)
            trainer = trainer_of(tmp_path, recorder, **settings)
            with contextlib.nullcontext() if at is None else pytest.raises(Death), cluster.join(0) as job:
                perdure.hf.DiLoCoCallback(job, sync_every=2).train(trainer)
            assert min(recorder.steps, default=steps + 1) == begun + 1, at
            made |= recorder.steps
            begun = 0 if at is None else min(steps, (at - 1) // 2 * 2)
        cluster.end()
        assert trainer.state.global_step == steps
        assert sorted(made) == list(range(1, steps + 1))
        ends.append((made, hash_of(trainer.model)))
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("settings", "without", "deaths", "steps"),
    [
        ({"max_steps": 17, "eval_strategy": "steps", "eval_steps": 4}, (6, 4), (4, 5, 8, 10, 15, 9999), 17),
        ({"num_train_epochs": 3, "gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine"}, (3,), (3, 6, 9), 9),
        ({"max_steps": 11, "stream": True, "end": 100}, (), (3, 10), 11),
    ],
)
def test_goes_on_from_drafts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    without: tuple[int, ...],
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
            recorder, tokens = Recorder(at), perdure.Count()
            trainer = trainer_of(tmp_path, recorder, **settings)
            trainer.model.register_forward_pre_hook(
                lambda model, _, of, tokens=tokens: tokens.add(len(of["x"])) if model.training else None,
                with_kwargs=True,
            )
            with contextlib.nullcontext() if at is None else pytest.raises(Death), cluster.join(0) as job:
                perdure.hf.DiLoCoCallback(job, sync_every=5, weights=tokens).train(trainer)
            assert min(recorder.steps, default=steps + 1) == begun + 1, at
            made |= recorder.steps
            begun = 0 if at is None else min(steps, begins(at, 5, *without))
        cluster.end()
        assert sorted(made) == list(range(1, steps + 1))
        ends.append((made, hash_of(trainer.model)))
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("settings", "deaths"),
    [
        ({"max_steps": 17, "collator": collate_with_noise, "logging_steps": 4}, (4, 6, 12, 16, 9999)),
        ({"num_train_epochs": 4, "gradient_accumulation_steps": 2, "bf16": True, "kind": Varied}, (3, 5, 8, 11)),
        (
            {
                "num_train_epochs": 3,
                "lr_scheduler_type": "reduce_lr_on_plateau",
                "lr_scheduler_kwargs": {"patience": 0, "cooldown": 1, "mode": "max"},
                "eval_strategy": "steps",
                "eval_steps": 2,
                "eval_on_start": True,
            },
            (5, 6, 12, 17),
        ),
        ({"max_steps": 17, "train_sampling_strategy": "group_by_length", "lr_scheduler_type": "cosine"}, (8, 15)),
        ({"num_train_epochs": 3, "dataloader_num_workers": 1, "dataloader_persistent_workers": True}, (7, 15)),
        ({"max_steps": 11, "stream": True, "end": 100, "gradient_accumulation_steps": 2}, (5, 9, 9999)),
        ({"max_steps": 12, "scaler": 2.0**60, "max_grad_norm": 0}, (5, 9)),  # some steps overflow and are skipped
    ],
)
def test_data_parallel_goes_on(tmp_path: Path, settings: dict[str, Any], deaths: tuple[int, ...]) -> None:
    ends = []
    for name, fates in (("calm", ()), ("torn", deaths)):
        made: dict[int, tuple[float, list[int]]] = {}
        begun = []

        def life(job: perdure.Job, number: int) -> Any:
            recorder = Recorder(fates[number] if number < len(fates) else None)  # noqa: B023
            trainer = trainer_of(tmp_path, recorder, **settings)
            try:
                perdure.hf.DataParallelCallback(job).train(trainer)
            finally:
                begun.append(min(recorder.steps, default=9999))  # noqa: B023
                made.update(recorder.steps)  # noqa: B023
            return trainer

        trainer = lives(tmp_path / name, life, len(fates), "--recovery", "checkpoint:2")
        assert begun[0] == 1
        assert not fates or max(begun) > 1
        assert sorted(made) == list(range(1, trainer.state.max_steps + 1))
        ends.append((made, losses(trainer.state.log_history[:-1]), hash_of(trainer.model)))
    assert ends[0] == ends[1]


def test_as_the_trainer_alone(tmp_path: Path) -> None:
    """One slot trains like the trainer without perdure."""
    settings = {"num_train_epochs": 2, "gradient_accumulation_steps": 4, "end": 40, "weight_decay": 0.1}
    alone = trainer_of(tmp_path, Recorder(None), **settings)
    alone.train()
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        trainer = trainer_of(tmp_path, Recorder(None), **settings)
        perdure.hf.DataParallelCallback(job).train(trainer)
    assert hash_of(trainer.model) == hash_of(alone.model)
    assert losses(trainer.state.log_history[:-1]) == losses(alone.state.log_history[:-1])


def test_data_parallel_stops_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that takes over after the last step does not train again."""
    keep = perdure.DataParallel._keep_end

    def keep_and_die(of: Any) -> None:
        keep(of)
        monkeypatch.undo()
        raise Death

    monkeypatch.setattr(perdure.DataParallel, "_keep_end", keep_and_die)

    def life(job: perdure.Job, number: int) -> Any:
        trainer = trainer_of(
            tmp_path,
            Recorder(None),
            num_train_epochs=9,
            eval_strategy="steps",
            eval_steps=3,
            metric_for_best_model="loss",
        )
        trainer.add_callback(transformers.EarlyStoppingCallback(2, 99))  # no later loss counts as better than the first
        perdure.hf.DataParallelCallback(job).train(trainer)
        return trainer

    assert lives(tmp_path, life, 1, "--recovery", "checkpoint:1").state.global_step == 9


RESUMED = """
import os, sys
from pathlib import Path
import perdure.hf
sys.path[:0] = [os.environ["TESTS"], os.environ["TESTS"] + "/torch"]
from test_hf import Recorder, hash_of, trainer_of
with perdure.start() as job:
    trainer = trainer_of(Path.cwd(), Recorder(None), max_steps=20, lr_scheduler_type="constant")
    perdure.hf.DataParallelCallback(job).train(trainer)
open(sys.argv[1], "w").write(hash_of(trainer.model))
"""


def test_resumed_with_more_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS", str(Path(__file__).parents[1]))
    hashes = {}
    for steps in (9, 12, 20):  # an epoch has 6
        with perdure.start(out=tmp_path / str(steps), recovery="checkpoint:4", clocks=1000, args=SMALL) as job:
            trainer = trainer_of(tmp_path, Recorder(None), max_steps=steps, lr_scheduler_type="constant")
            perdure.hf.DataParallelCallback(job).train(trainer)
        hashes[steps] = hash_of(trainer.model)
    assert resume(tmp_path, "9", RESUMED) == hashes[20]
    assert resume(tmp_path, "12", RESUMED) == hashes[20]


KILLED = """
import json, os, signal, sys
from pathlib import Path
import perdure.hf, perdure._draft
import torch
sys.path[:0] = [os.environ["TESTS"], os.environ["TESTS"] + "/torch"]
from launched import hash_of
from test_hf import Recorder, trainer_of
perdure._draft.SHARE = 1e9
torch.set_num_threads(1)
out, rank = Path(sys.argv[1]), int(os.environ["PERDURE_SLOT"])


class Killed(Recorder):
    def on_step_begin(self, args, state, control, **of):
        if not os.path.exists(f"{out}.begun.{rank}.{os.getpid()}"):
            Path(f"{out}.begun.{rank}.{os.getpid()}").write_text(str(state.global_step))
        super().on_step_begin(args, state, control, **of)

    def on_step_end(self, args, state, control, **of):
        super().on_step_end(args, state, control, **of)
        with open(f"{out}.steps.{rank}", "a") as f:
            f.write(json.dumps([state.global_step, *self.steps[state.global_step]]) + "\\n")
        once = Path(f"{out}.killed")
        if "torn" in out.name and rank == 1 and state.global_step == 9 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)


with perdure.start() as job:
    trainer = trainer_of(out.parent / str(rank), Killed(None), max_steps=14, seed=rank)
    perdure.hf.DiLoCoCallback(job, sync_every=7).train(trainer)
steps = [json.loads(line) for line in open(f"{out}.steps.{rank}")]
begun = sorted(int(path.read_text()) for path in out.parent.glob(f"{out.name}.begun.{rank}.*"))
said = {"model": hash_of(trainer.model), "made": {s[0]: s[1:] for s in steps}, "count": len(steps), "begun": begun}
Path(f"{out}.{rank}").write_text(json.dumps(said))
"""


def test_killed_between_outer_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS", str(Path(__file__).parents[1]))
    calm, torn = launch(tmp_path, "calm", KILLED), launch(tmp_path, "torn", KILLED)
    assert [of["begun"] for of in (*calm, *torn)] == [[0], [0], [0], [0, 8]]  # not 7, the step of the outer step
    assert [of["count"] for of in (*calm, *torn)] == [14, 14, 14, 15]  # step 9 was repeated
    assert [of["made"] for of in calm] == [of["made"] for of in torn]
    assert {of["model"] for of in (*calm, *torn)} == {calm[0]["model"]}


def test_job_ends_first(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "--workers", "1", "--servers", "1", "--clocks", "3")
    with cluster.join(0) as job:
        trainer = trainer_of(tmp_path, Recorder(None), num_train_epochs=5)
        perdure.hf.DiLoCoCallback(job, sync_every=2).train(trainer)
    assert trainer.state.global_step == 6  # the steps of two clocks, and those after the job's end
    cluster.end()


def test_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        callback = perdure.hf.DiLoCoCallback(job)
        trainer = trainer_of(tmp_path, Recorder(None), max_steps=3)
        with pytest.raises(perdure.UsageError, match="resume_from_checkpoint"):
            callback.train(trainer, resume_from_checkpoint=True)
        for name, value, said in (
            ("load_best_model_at_end", True, "load_best_model_at_end: slots would end with different models"),
            ("save_strategy", "best", "all slots would write checkpoints"),
            ("ignore_data_skip", True, "ignore_data_skip"),
            ("auto_find_batch_size", True, "choose a batch size"),
            ("_n_gpu", 2, "the trainer has 2 GPUs"),
            ("steps_per_generation", 2, "reuses generations in later steps"),  # of TRL's GRPOConfig
            ("num_iterations", 2, "reuses generations in later steps"),
        ):
            with monkeypatch.context() as m, pytest.raises(perdure.UsageError, match=said):
                m.setattr(trainer.args, name, value, raising=False)
                callback.train(trainer)
        with pytest.raises(perdure.UsageError, match=r"call the callback's train\(trainer\)"):
            trainer_of(tmp_path, callback, max_steps=3).train()
        with pytest.raises(perdure.UsageError, match="sync_every 0"):
            perdure.hf.DiLoCoCallback(job, sync_every=0)
        plateau = trainer_of(
            tmp_path, Recorder(None), max_steps=3, lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="epoch"
        )
        with pytest.raises(perdure.UsageError, match="ReduceLROnPlateau"):
            callback.train(plateau)
        short = trainer_of(tmp_path, Recorder(None), max_steps=11, stream=True)
        with pytest.raises(perdure.UsageError, match="at step 6 of 11"):
            callback.train(short)
        job.end_job()


def test_data_parallel_refused(tmp_path: Path) -> None:
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        callback = perdure.hf.DataParallelCallback(job)
        trainer = trainer_of(tmp_path, Recorder(None), max_steps=3)
        with pytest.raises(perdure.UsageError, match="resume_from_checkpoint"):
            callback.train(trainer, resume_from_checkpoint=True)
        with pytest.raises(perdure.UsageError, match=r"call the callback's train\(trainer\)"):
            trainer_of(tmp_path, perdure.hf.DataParallelCallback(job), max_steps=3).train()
        short = trainer_of(tmp_path, Recorder(None), max_steps=11, stream=True)
        with pytest.raises(perdure.UsageError, match="at step 6 of 11"):
            callback.train(short)
        with pytest.raises(perdure.UsageError, match="has been used already"):
            callback.train(trainer_of(tmp_path, Recorder(None), max_steps=3))
        job.end_job()


DISTRIBUTED = """
import perdure.hf, torch
from transformers import Trainer, TrainingArguments
trainer = Trainer(torch.nn.Linear(1, 1), TrainingArguments("out", use_cpu=True, report_to=[]))
try:
    perdure.hf.DiLoCoCallback(None).train(trainer)
except perdure.UsageError as error:
    print(f"refused: {error}", flush=True)
"""


def test_distributed_by_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DISTRIBUTED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.count("refused: the trainer itself is distributed") == 2, done


def test_without_transformers() -> None:
    program = "import sys; sys.modules['transformers'] = None; import perdure.hf"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("ImportError: perdure.hf needs transformers")
