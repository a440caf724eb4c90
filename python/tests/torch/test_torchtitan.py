"""Tests with torchtitan's trainer, which `make check-torch` installs. Its device is the CPU, and it uses gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL
from launched import kills

from perdure import UsageError

pytest.importorskip("torch")
pytest.importorskip("torchtitan")

STEPS, BATCH = 12, 4  # a step has two batches of 4 samples per rank
SAMPLES = 400

#: torchtitan chooses its device when it is imported, and would require a GPU.
CPU = """
import types
import torch, torch._utils
torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.get_device_name = lambda *_: "CPU"
torch.cpu.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1 << 30, name="CPU")
torch.cpu.memory_stats = lambda *_: {}
torch.cpu.current_device = lambda: 0
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda *_: None
import perdure.torchtitan, perdure._island_diloco, perdure._island_parallel
import torchtitan.models.llama3.config_registry
from torch.distributed.fsdp import FSDPModule
from torchtitan.distributed import fsdp


def sums(model, divide=fsdp.disable_fsdp_gradient_division):
    divide(model)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply within a reduction


fsdp.disable_fsdp_gradient_division = sums
"""

#: The debug model with one layer, and with an attention that the CPU has. Each sample is a document with a word of its
#: own, whose token is its number. The first argument is the prefix of the results.
TRAIN = """
import hashlib, json, os, sys
import torch
import cpu
from torchtitan.components.optimizer import ParamGroupConfig
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import config_registry
import perdure.torchtitan
torch.set_num_threads(1)
out = sys.argv.pop(1)


class Trainer(perdure.torchtitan.Trainer):
    Config = perdure.torchtitan.Trainer.Config

    def post_dataloading_process(self, inputs, labels):
        with open(f"{out}.samples", "a") as f:
            f.write(json.dumps([self.job.slot, os.environ["RANK"], self.step, inputs["input"][:, 1].tolist()]) + "\\n")
        return super().post_dataloading_process(inputs, labels)

    def train(self):
        begun = self.step
        super().train()
        h = hashlib.sha256()
        for name, v in sorted(self.model_parts[0].state_dict().items()):
            h.update((v.full_tensor() if hasattr(v, "full_tensor") else v).detach().numpy().tobytes())
        rates = [s.last_epoch for s in self.lr_schedulers]
        with open(f"{out}.{self.job.slot}.{os.environ['RANK']}", "w") as f:
            json.dump({"model": h.hexdigest(), "at": [self.step, self.ntokens_seen, *rates], "begun": begun}, f)


def debug(of=config_registry.llama3_debugmodel()):
    of.model_spec.model.layers = of.model_spec.model.layers[:1]
    of.model_spec.model.layers[0].attention.inner_attention = ScaledDotProductAttention.Config()
    head = ParamGroupConfig(pattern="lm_head", optimizer_name="Adam", optimizer_kwargs={"lr": 1e-3})
    of.optimizer.param_groups = [head, *of.optimizer.param_groups]
    return of


config_registry.llama3_debugmodel = debug
perdure.torchtitan.main()
os._exit(0)  # torchtitan has switched off garbage collection, so the interpreter would take long to end
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tokenizer and documents."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("data")
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, 2000)}
    tokenizer = Tokenizer(models.WordLevel(vocab, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    (folder / "texts").mkdir()
    lines = (json.dumps({"text": " ".join([f"w{i + 3}"] * 15)}) for i in range(SAMPLES))
    (folder / "texts" / "data.json").write_text("\n".join(lines))
    return folder


def launch(folder: Path, data: Path, name: str, mode: str, *flags: str) -> list[dict[str, Any]]:
    """Train with two slots. Return the results of all ranks."""
    ranks = {"diloco": 2, "data_parallel": 0, "data_parallel in islands": 2}[mode]
    (folder / "cpu.py").write_text(CPU)
    (folder / "train.py").write_text(TRAIN)
    of = [sys.executable, "-m", "perdure", "launch", "--nproc", str(2 * max(ranks, 1)), "--servers", "2", *SMALL, "-q"]
    of += [f"--nproc-per-learner={ranks}"] if ranks else []
    of += ["--preload", "cpu", f"--out={folder / name}.run", *flags, "train.py", str(folder / name)]
    of += ["--module=llama3", "--config=llama3_debugmodel", "--training.disable-cuda-graphs", "--debug.seed=5"]
    of += [f"--training.steps={STEPS}", f"--training.local-batch-size={BATCH}", "--training.seq-len=16"]
    of += [f"--training.global-batch-size={4 * BATCH * max(ranks, 1)}", f"--hf-assets-path={data}"]
    of += [f"--dataloader.dataset-path={data / 'texts'}", f"--dump-folder={folder / name}.out"]
    of += ["--checkpoint.enable", "--checkpoint.interval=4", "--validator.enable", "--validator.freq=3"]
    of += ["--validator.steps=1", "--validator.dataloader.dataset=c4_test"]
    of += [f"--validator.dataloader.dataset-path={data / 'texts'}"]
    of += ["--perdure.sync-every=3"] if mode == "diloco" else ["--perdure.mode=data_parallel"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
        "OMP_NUM_THREADS": "1",
        "HF_HOME": str(data / "cache"),
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(of, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    logs = (folder / f"{name}.run" / "logs" / f"worker-{slot}.log" for slot in range(2))
    assert done.returncode == 0, done.stderr + "".join(log.read_text() for log in logs if log.exists())
    lines = set((folder / f"{name}.samples").read_text().splitlines())
    ids = [i for line in lines for i in json.loads(line)[3]]
    assert len(ids) == len(set(ids)) == STEPS * 4 * BATCH * max(ranks, 1)  # also those of repeated steps
    assert (folder / f"{name}.out" / "slot-0" / "checkpoint" / f"step-{STEPS}").exists()
    assert not (folder / f"{name}.out" / "slot-1" / "checkpoint").exists()
    return [
        json.loads((folder / f"{name}.{slot}.{rank}").read_text()) for slot in range(2) for rank in range(ranks or 1)
    ]


@pytest.mark.parametrize("mode", ["diloco", "data_parallel", "data_parallel in islands"])
def test_same_model_through_kills(tmp_path: Path, data: Path, mode: str) -> None:
    calm = launch(tmp_path, data, "calm", mode)
    clocks = (1, 3) if mode == "diloco" else (4, 7)
    storm = [f"--fault=kill:{kill}@clock:{at}" for kill, at in zip(("server:0", "worker:1"), clocks, strict=True)]
    torn = launch(tmp_path, data, "torn", mode, "--recovery=resend:5", *storm)
    assert kills(tmp_path, "torn") == 2
    assert {of["begun"] for of in calm} == {0}
    assert (torn[0]["begun"] > 0) == ("in islands" in mode)  # there, all slots return to a checkpoint
    assert torn[-1]["begun"] > 0
    assert {of["model"] for of in (*calm, *torn)} == {calm[0]["model"]}
    assert all(of["at"] == [STEPS, STEPS * 2 * BATCH * 16, STEPS, STEPS] for of in (*calm, *torn))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"parallelism.tensor_parallel_degree": 2}, "parallelism.tensor_parallel_degree 2"),
        ({"parallelism.pipeline_parallel_degree": 2}, "parallelism.pipeline_parallel_degree 2"),
        ({"parallelism.context_parallel_degree": 2}, "parallelism.context_parallel_degree 2"),
        ({"parallelism.expert_parallel_degree": 2}, "parallelism.expert_parallel_degree 2"),
        ({"parallelism.data_parallel_replicate_degree": 2}, "parallelism.data_parallel_replicate_degree 2"),
        ({"training.disable_cuda_graphs": False}, "--training.disable-cuda-graphs"),
        ({"comm.mode": "fake_backend"}, "comm.mode fake_backend"),
        ({"checkpoint.create_seed_checkpoint": True}, "checkpoint.create_seed_checkpoint"),
        ({"perdure.mode": "diloco"}, "add --nproc-per-learner"),
        ({"perdure.sync_every": 5}, "perdure.sync_every belongs to diloco"),
    ],
)
def test_refuses(settings: dict[str, Any], says: str) -> None:
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    import perdure.torchtitan

    of = perdure.torchtitan.config(llama3_debugmodel(), mode="data_parallel")
    of.training.disable_cuda_graphs = True
    for name, value in settings.items():
        section, _, field = name.partition(".")
        setattr(getattr(of, section), field, value)
    with pytest.raises(UsageError, match=says):
        perdure.torchtitan.Trainer(of)


def test_refuses_other_trainers() -> None:
    from torchtitan.models.flux.config_registry import flux_debugmodel

    import perdure.torchtitan

    with pytest.raises(UsageError, match="belongs to FluxTrainer, a trainer of its own"):
        perdure.torchtitan.config(flux_debugmodel())
