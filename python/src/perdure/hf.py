"""``transformers.Trainer`` on Perdure: DiLoCo, as a callback. Import this before TrainingArguments are made.

In a process of ``perdure launch``, or of a host, the import removes RANK and the like from the environment: the trainer
would take them for a distributed training of its own. ``job.share`` has the rank.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import ExportableState
    from transformers.trainer_utils import TrainOutput
except ImportError as error:
    raise ImportError(f"perdure.hf needs transformers and accelerate, of PyTorch ({error}); install them") from None

from . import _nested
from ._ending import Left
from ._trainers import Outer
from .errors import RolledBack, UsageError
from .job import Job
from .rules import Rule
from .torch import Stateful

if "PERDURE_COORDINATOR" in os.environ:
    for _name in _nested.RANKS:
        os.environ.pop(_name, None)


class _Nothing(Exception):
    """There is nothing to train any more."""


class DiLoCoCallback(TrainerCallback):  # type: ignore[misc]
    """Have ``transformers.Trainer`` train by DiLoCo, through the death of any process.

    Call ``train`` in place of the trainer's: it tells the trainer where an earlier process of the slot was.

    job: the job, under bsp. sync_every: how many optimizer steps are between two outer ones. outer, weights, state,
    end: as in ``perdure.DiLoCo``. The states of the optimizer, of its scheduler, of float16's scaler, of the trainer
    with its callbacks, and of random numbers are kept in any case, and batches that count are not drawn again. There
    are drafts, as of ``perdure.DiLoCo``; but not of a step that ends an epoch, or is followed by an evaluation.
    """

    def __init__(
        self,
        job: Job,
        *,
        sync_every: int = 100,
        outer: Rule | None = None,
        weights: Callable[[], float] | None = None,
        state: Iterable[Stateful] = (),
        end: str = "first",
    ) -> None:
        self._outer = Outer(job, sync_every=sync_every, outer=outer, weights=weights, state=state, end=end)
        self._trainer: Trainer | None = None
        self._from: dict[str, Any] | None = None  # where the trainer was told to begin
        self._amid = False  # the first epoch of this process had begun in another

    def train(self, trainer: Trainer, **settings: Any) -> TrainOutput:
        """Train as ``trainer.train(**settings)``. Behind it the model is the one that all slots have."""
        _refuse(trainer, settings)
        self._trainer, self._from = trainer, self._outer.saved(trainer.model)
        trainer.add_callback(self)
        try:
            with _checkpoint(trainer, self._from) as folder:
                return trainer.train(resume_from_checkpoint=folder, **settings)
        except _Nothing:
            trainer.is_in_train = False
            trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
            return TrainOutput(trainer.state.global_step, float("nan"), {})

    def _place(self) -> dict[str, Any]:
        """What the trainer needs to go on."""
        assert self._trainer is not None
        state = json.dumps(dataclasses.asdict(self._trainer.state))
        return {"state": state, "callbacks": [of.state()["attributes"] for of in self._stateful()]}

    def _stateful(self) -> list[Any]:
        """The trainer's callbacks that have a state, such as early stopping."""
        assert self._trainer is not None
        return [of for of in self._trainer.callback_handler.callbacks if isinstance(of, ExportableState)]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any
    ) -> TrainerControl:
        """Take over the weights, and what was saved with them."""
        if self._trainer is None:
            raise UsageError("call the callback's train(trainer) in place of trainer.train()")
        inner = getattr(of["optimizer"], "optimizer", of["optimizer"])  # without accelerate's wrapper
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        kept = [has_state for has_state in (of["lr_scheduler"], scaler) if has_state is not None]
        self._outer.begin(
            self._trainer.model,
            inner,
            kept,
            self._place,
            lambda: Left(state.max_steps - state.global_step, state.max_steps, "steps"),
        )
        loaded = self._outer.place.loaded
        if (loaded or {}).get("state") != (self._from or {}).get("state"):
            raise RolledBack("the job was rolled back: let this program end, and start it again")
        if self._from is not None:
            for callback, attributes in zip(self._stateful(), self._from["callbacks"], strict=True):
                vars(callback).update(attributes)
        self._amid = state.epoch % 1 != 0
        if self._outer.over or (self._from is not None and state.global_step >= state.max_steps):
            raise _Nothing
        return control

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Have the loader find the random numbers that its epoch began with."""
        self._outer.begin_epoch(self._amid)
        self._amid = False

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Have the model find the random numbers that the last outer step has saved."""
        self._outer.begin_step()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Make the outer step, if it is time. Checkpoints of the trainer are slot 0's."""
        last = control.should_training_stop or state.global_step >= state.max_steps
        self._outer.stepped(state.global_step - 1, state.global_step, last)
        control.should_training_stop |= self._outer.over
        control.should_save &= self._outer.job.slot == 0
        return control

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Have no draft of the step before: its process could go on behind the evaluation, and not know of it."""
        self._outer.no_draft()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any
    ) -> TrainerControl:
        """Refuse a second epoch of data whose place in it nobody could find again."""
        loader = of["train_dataloader"]
        if not control.should_training_stop and not hasattr(loader.dataset, "__len__"):
            raise UsageError(
                f"the data end at step {state.global_step} of {state.max_steps}; data without a length are read once: "
                "give them a length, or no end"
            )
        control.should_save &= self._outer.job.slot == 0
        return control

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Wait until all have done, and take the model that they have."""
        self._outer.finish()


def _refuse(trainer: Trainer, settings: dict[str, Any]) -> None:
    """Raise UsageError for what does not go together."""
    args = trainer.args
    for wrong, said in (
        (
            settings.get("resume_from_checkpoint"),
            "resume_from_checkpoint: the slot's state says where to go on; leave it out",
        ),
        (
            args.world_size > 1 or trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled,
            "the trainer is distributed by itself; start it by perdure launch, and import perdure.hf at its top",
        ),
        (args.n_gpu > 1, f"the trainer has {args.n_gpu} GPUs; give each process one by CUDA_VISIBLE_DEVICES"),
        (args.load_best_model_at_end, "load_best_model_at_end: slots would end with different models; leave it out"),
        (args.ignore_data_skip, "ignore_data_skip: batches would count twice; leave it out"),
        (
            not hasattr(trainer, "_load_from_checkpoint"),
            "this version of transformers begins in another way; take 5.24",
        ),
        (args.auto_find_batch_size, "auto_find_batch_size: steps would count anew; choose a batch size"),
        (
            _reuses_generations(args),
            "the trainer reuses generations in later steps, from a buffer that is not in its state; choose "
            "steps_per_generation no larger than gradient_accumulation_steps, and num_iterations=1",
        ),
    ):
        if wrong:
            raise UsageError(said)


def _reuses_generations(args: TrainingArguments) -> bool:
    """Whether TRL's trainers, such as GRPOTrainer, train several optimizer steps on what they generated once."""
    batches: int = (getattr(args, "steps_per_generation", None) or 1) * (getattr(args, "num_iterations", None) or 1)
    return batches > int(args.gradient_accumulation_steps)


@contextlib.contextmanager
def _checkpoint(trainer: Trainer, of: dict[str, Any] | None) -> Iterator[str | None]:
    """A folder by which the trainer finds where it was. It has no weights, which come from the job a little later."""
    if of is None:
        yield None
        return
    trainer._load_from_checkpoint = lambda *_, **__: None
    try:
        with tempfile.TemporaryDirectory(prefix="perdure-") as folder:
            Path(folder, "trainer_state.json").write_text(of["state"], encoding="utf-8")
            yield folder
    finally:
        del trainer._load_from_checkpoint
