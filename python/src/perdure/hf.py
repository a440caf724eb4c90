"""DiLoCo for ``transformers.Trainer``, as a callback. Import this module before creating TrainingArguments.

In a process started by ``perdure launch`` or by a host, the import removes RANK and similar variables from the
environment. Otherwise the trainer would start its own distributed training. ``job.share`` contains the rank.
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
    raise ImportError(f"perdure.hf needs transformers, accelerate and PyTorch ({error}); install them") from None

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
    """No training is left for this process."""


class DiLoCoCallback(TrainerCallback):  # type: ignore[misc]
    """Trains with DiLoCo in ``transformers.Trainer``. Training survives the death of any process.

    Call ``train`` instead of the trainer's method: it makes the trainer continue where an earlier process of the slot
    stopped. The states of the optimizer, its scheduler, the float16 scaler, the trainer with its callbacks, and the
    random number generators are always saved. Batches whose steps count are not drawn again. Drafts are written as
    with ``perdure.DiLoCo``, except for steps that end an epoch or are followed by an evaluation.

    Args:
        job: The job, with consistency ``bsp``.
        sync_every: The number of optimizer steps between two outer steps.
        outer: As in ``perdure.DiLoCo``.
        weights: As in ``perdure.DiLoCo``.
        state: As in ``perdure.DiLoCo``.
        end: As in ``perdure.DiLoCo``.

    Example:
        >>> DiLoCoCallback(job, sync_every=100).train(trainer)
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
        self._from: dict[str, Any] | None = None  # the trainer state from which training starts
        self._amid = False  # whether another process started the first epoch of this one

    def train(self, trainer: Trainer, **settings: Any) -> TrainOutput:
        """Train like ``trainer.train(**settings)``. When it returns, all slots have the same model.

        Args:
            trainer: The trainer.
            settings: Arguments of the trainer's ``train``.

        Returns:
            The result of the trainer's ``train``.

        Raises:
            UsageError: A setting of the trainer does not work with DiLoCo; the message names it.
            RolledBack: The job was rolled back. Exit, and start this program again.
        """
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
        """Return the state that the trainer needs to continue."""
        assert self._trainer is not None
        state = json.dumps(dataclasses.asdict(self._trainer.state))
        return {"state": state, "callbacks": [of.state()["attributes"] for of in self._stateful()]}

    def _stateful(self) -> list[Any]:
        """Return the trainer's callbacks that have a state, such as early stopping."""
        assert self._trainer is not None
        return [of for of in self._trainer.callback_handler.callbacks if isinstance(of, ExportableState)]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any
    ) -> TrainerControl:
        """Load the weights and the states saved with them."""
        if self._trainer is None:
            raise UsageError("call the callback's train(trainer) instead of trainer.train()")
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
            raise RolledBack("the job was rolled back; exit, and start this program again")
        if self._from is not None:
            for callback, attributes in zip(self._stateful(), self._from["callbacks"], strict=True):
                vars(callback).update(attributes)
        self._amid = state.epoch % 1 != 0
        if self._outer.over or (self._from is not None and state.global_step >= state.max_steps):
            raise _Nothing
        return control

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Restore the random number state with which the epoch started, for the loader."""
        self._outer.begin_epoch(self._amid)
        self._amid = False

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Restore the random number state that the last outer step saved, for the model."""
        self._outer.begin_step()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Make the outer step if it is due. Only slot 0 saves the trainer's checkpoints."""
        last = control.should_training_stop or state.global_step >= state.max_steps
        self._outer.stepped(state.global_step - 1, state.global_step, last)
        control.should_training_stop |= self._outer.over
        control.should_save &= self._outer.job.slot == 0
        return control

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write no draft of the step before an evaluation: its reader would continue without the evaluation."""
        self._outer.no_draft()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any
    ) -> TrainerControl:
        """Raise UsageError for a second epoch over data without a length: its position could not be restored."""
        loader = of["train_dataloader"]
        if not control.should_training_stop and not hasattr(loader.dataset, "__len__"):
            raise UsageError(
                f"the data ends at step {state.global_step} of {state.max_steps}, and data without a length can be "
                "read only once: give the dataset a length, or make it endless"
            )
        control.should_save &= self._outer.job.slot == 0
        return control

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Wait until all slots are done, and load the final model."""
        self._outer.finish()


def _refuse(trainer: Trainer, settings: dict[str, Any]) -> None:
    """Raise UsageError for settings that do not work with DiLoCo."""
    args = trainer.args
    for wrong, said in (
        (
            settings.get("resume_from_checkpoint"),
            "omit resume_from_checkpoint: the slot's state determines where training continues",
        ),
        (
            args.world_size > 1 or trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled,
            "the trainer itself is distributed; start the program with perdure launch, and import perdure.hf first",
        ),
        (args.n_gpu > 1, f"the trainer has {args.n_gpu} GPUs; assign one to each process with CUDA_VISIBLE_DEVICES"),
        (args.load_best_model_at_end, "omit load_best_model_at_end: slots would end with different models"),
        (args.ignore_data_skip, "omit ignore_data_skip: batches would be counted twice"),
        (
            not hasattr(trainer, "_load_from_checkpoint"),
            "this version of transformers loads checkpoints differently; use 5.24",
        ),
        (args.auto_find_batch_size, "auto_find_batch_size restarts the step count; choose a batch size instead"),
        (
            _reuses_generations(args),
            "the trainer reuses generations in later steps from a buffer that its state does not contain; choose "
            "steps_per_generation no larger than gradient_accumulation_steps, and num_iterations=1",
        ),
    ):
        if wrong:
            raise UsageError(said)


def _reuses_generations(args: TrainingArguments) -> bool:
    """Reports whether a TRL trainer, such as GRPOTrainer, uses the same generations for several optimizer steps."""
    batches: int = (getattr(args, "steps_per_generation", None) or 1) * (getattr(args, "num_iterations", None) or 1)
    return batches > int(args.gradient_accumulation_steps)


@contextlib.contextmanager
def _checkpoint(trainer: Trainer, of: dict[str, Any] | None) -> Iterator[str | None]:
    """Create a checkpoint directory with the trainer's state. It has no weights: those come from the job later."""
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
