"""TRL's trainers with the callbacks of perdure.hf. `make check-torch` installs TRL and PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL
from launched import Death, hash_of, kills, launch, lives

import perdure

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
import datasets  # noqa: E402
import peft  # noqa: E402
import tokenizers  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer  # noqa: E402

import perdure.hf  # noqa: E402

WORDS = ["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"]
LORA = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)


def tokenizer_of() -> Any:
    """Return a tokenizer whose tokens are letters."""
    words = tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>")
    of = tokenizers.Tokenizer(words)
    of.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=of, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def model_of() -> Any:
    """Return a tiny Llama."""
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(WORDS),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=1,
        )
    )


def texts_of(count: int) -> list[str]:
    """Return texts of unequal lengths. The first two letters of each are its number."""
    g = torch.Generator().manual_seed(3)
    letters = [torch.randint(26, (2 + i % 9,), generator=g).tolist() for i in range(count)]
    return [" ".join(WORDS[3 + k] for k in (i // 26, i % 26, *of)) for i, of in enumerate(letters)]


SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "num_train_epochs": 2,
    "learning_rate": 1e-2,
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "save_strategy": "no",
    "disable_tqdm": True,
}

SFT = """
import json, os, sys
import perdure.hf
import torch
torch.set_num_threads(1)
sys.path[:0] = [os.environ["TESTS"], os.environ["TESTS"] + "/torch"]
from test_trl import *
rank = int(os.environ["PERDURE_SLOT"])


class Counting(trl.SFTTrainer):
    def compute_loss(self, model, inputs, *args, **of):
        ids = (inputs["input_ids"][:, 0] - 3) * 26 + inputs["input_ids"][:, 1] - 3
        counts.inc(ids.numpy(), torch.ones(len(ids), 1).numpy())
        return super().compute_loss(model, inputs, *args, **of)


class Total(transformers.TrainerCallback):
    def on_train_end(self, *_, **__):
        self.of = counts.get_run(0, 60)


with perdure.start() as job:
    counts = job.table("counts", 60, dim=1, rule=perdure.Add())
    part = datasets.Dataset.from_dict({"text": texts_of(60)[rank::2]})
    trainer = Counting(
        model_of(), trl.SFTConfig("out", **SETTINGS, max_length=16, seed=3 + rank), train_dataset=part,
        processing_class=tokenizer_of(), peft_config=LORA, callbacks=[total := Total()],
    )
    perdure.hf.CALLBACK.train(trainer)
place = f"{sys.argv[1]}.adapter.{rank}"
trainer.save_model(place)
again = peft.PeftModel.from_pretrained(model_of(), place).merge_and_unload().eval()
x = torch.tensor([[3, 4, 5]])
torch.testing.assert_close(again(x).logits, trainer.model.merge_and_unload().eval()(x).logits)
said = {"model": hash_of(again), "least": int(total.of.min()), "most": int(total.of.max())}
with open(f"{sys.argv[1]}.{rank}", "w") as f:
    json.dump(said, f)
"""


@pytest.mark.parametrize("callback", ["DataParallelCallback(job)", "DiLoCoCallback(job, sync_every=3)"])
def test_sft_with_lora_through_kills(tmp_path: Path, callback: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS", str(Path(__file__).parents[1]))
    program = SFT.replace("CALLBACK", callback)
    flags = ("--preload", "torch,transformers.trainer,perdure.torch")
    calm = launch(tmp_path, "calm", program, *flags)
    storm = ("worker:1@clock:3", "server:0@clock:4")
    torn = launch(tmp_path, "torn", program, *flags, *(f"--fault=kill:{kill}" for kill in storm))
    assert kills(tmp_path, "torn") >= len(storm)
    assert [of["model"] for of in (*calm, *torn)] == [calm[0]["model"]] * 4
    assert {(of["least"], of["most"]) for of in (*calm, *torn)} == {(2, 2)}


class Dies(transformers.TrainerCallback):
    """Simulates the program's death after a step."""

    def __init__(self, at: int | None) -> None:
        self.at = at

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.at:
            raise Death


def length(completions: list[str], **_: Any) -> list[float]:
    """A reward."""
    return [float(len(set(of.split()))) for of in completions]


def trainer_of(folder: Path, kind: str, callbacks: list[Any], **settings: Any) -> Any:
    """Return a trainer of a program that has just started."""
    tokenizer, model, args = tokenizer_of(), model_of(), {"output_dir": str(folder / "out"), **SETTINGS, **settings}
    common = {"processing_class": tokenizer, "callbacks": callbacks}
    texts = texts_of(24)
    prompts = datasets.Dataset.from_dict({"prompt": texts})
    if kind == "sft":
        data = datasets.Dataset.from_dict({"prompt": texts, "completion": texts[::-1]})
        return trl.SFTTrainer(model, trl.SFTConfig(**args, max_length=16), train_dataset=data, **common)
    if kind == "packed":
        args |= {"max_length": 16, "packing": True}
        data = datasets.Dataset.from_dict({"text": texts})
        return trl.SFTTrainer(model, trl.SFTConfig(**args), train_dataset=data, **common)
    if kind == "dpo":
        data = datasets.Dataset.from_dict({"prompt": texts, "chosen": texts[::-1], "rejected": texts})
        config = trl.DPOConfig(**args, max_length=16)
        return trl.DPOTrainer(model, model_of(), args=config, train_dataset=data, **common)
    if kind == "online":
        config = OnlineDPOConfig(**args, max_new_tokens=4)
        return OnlineDPOTrainer(model, model_of(), reward_funcs=length, args=config, train_dataset=prompts, **common)
    args |= {"num_generations": 2, "max_completion_length": 4}
    if kind == "rloo":  # it loads its reference model from the model's place
        model.save_pretrained(folder / "model")
        model = transformers.LlamaForCausalLM.from_pretrained(folder / "model")
        return trl.RLOOTrainer(model, length, args=trl.RLOOConfig(**args), train_dataset=prompts, **common)
    return trl.GRPOTrainer(model, length, args=trl.GRPOConfig(**args), train_dataset=prompts, **common)


DATA_PARALLEL, DILOCO = "DataParallelCallback", "DiLoCoCallback"


@pytest.mark.parametrize(
    ("kind", "callback", "settings", "deaths"),
    [
        ("sft", DATA_PARALLEL, {}, (4, 8)),  # the loss is that of completions only
        ("packed", DILOCO, {}, (3, 5)),
        ("dpo", DATA_PARALLEL, {}, (4, 8)),
        ("dpo", DILOCO, {}, (5, 9)),
        ("grpo", DATA_PARALLEL, {"gradient_accumulation_steps": 2}, (4, 9)),
        ("grpo", DILOCO, {"gradient_accumulation_steps": 4, "steps_per_generation": 2}, (4, 5)),
        ("rloo", DILOCO, {"gradient_accumulation_steps": 2}, (5, 9)),
        ("online", DATA_PARALLEL, {}, (4, 8)),
    ],
)
def test_goes_on(tmp_path: Path, kind: str, callback: str, settings: dict[str, Any], deaths: tuple[int, ...]) -> None:
    hashes = []
    for name, fates in (("calm", ()), ("torn", deaths)):

        def life(job: perdure.Job, number: int) -> Any:
            dies = Dies(fates[number] if number < len(fates) else None)  # noqa: B023
            trainer = trainer_of(tmp_path, kind, [dies], **settings)
            options = {"sync_every": 3} if callback == DILOCO else {}
            getattr(perdure.hf, callback)(job, **options).train(trainer)
            return trainer

        trainer = lives(tmp_path / name, life, len(fates), "--recovery", "checkpoint:2")
        assert trainer.state.global_step == trainer.state.max_steps > deaths[-1]
        hashes.append(hash_of(trainer.model))
    assert hashes[0] == hashes[1] != hash_of(model_of())


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("grpo", {"num_iterations": 2}),
        ("grpo", {"gradient_accumulation_steps": 3, "steps_per_generation": 2}),
        ("rloo", {"steps_per_generation": 4}),
    ],
)
def test_reused_generations_are_refused(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    trainer = trainer_of(tmp_path, kind, [], **settings)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        with pytest.raises(perdure.UsageError, match="reuses generations in later steps"):
            perdure.hf.DiLoCoCallback(job).train(trainer)
        job.end_job()
