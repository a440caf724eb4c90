"""Callbacks for ``transformers.Trainer``. Import this module before creating TrainingArguments.

In a process started by ``perdure launch`` or by a host, the import removes RANK and similar variables from the
environment. Otherwise the trainer would start its own distributed training. ``job.share`` contains the rank.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
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
from ._prepared import base_of, unwrapped
from ._trainers import Batches, Outer, Steps, generators_of
from .errors import Done, RolledBack, UsageError
from .job import Job
from .rules import Rule
from .torch import Stateful

_nested.hide_ranks()


class _Nothing(Exception):
    """No training is left for this process."""


#: Attributes from which the trainer computes its logs.
_SUMS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")


class _Callback(TrainerCallback):  # type: ignore[misc]
    """The common part of the callbacks."""

    _trainer: Trainer | None = None
    _from: dict[str, Any] | None = None  # the trainer's state from which training starts
    _job: Job

    def train(self, trainer: Trainer, **settings: Any) -> TrainOutput:
        """Train like ``trainer.train(**settings)``. When it returns, all slots have the same model.

        Args:
            trainer: The trainer.
            settings: Arguments of the trainer's ``train``.

        Returns:
            The result of the trainer's ``train``.

        Raises:
            UsageError: A setting of the trainer is not supported; the message names it.
            RolledBack: The job was rolled back. Exit, and start this program again.
        """
        _refuse(trainer, settings)
        self._trainer, self._from = trainer, self._saved(trainer)
        trainer.add_callback(self)
        try:
            with _checkpoint(trainer, self._from) as folder, self._changed(trainer):
                return trainer.train(resume_from_checkpoint=folder, **settings)
        except (_Nothing, Done):
            trainer.is_in_train = False
            trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
            return TrainOutput(trainer.state.global_step, float("nan"), {})

    def _saved(self, trainer: Trainer) -> dict[str, Any] | None:
        """Return the trainer's state saved by an earlier process of the slot, or None."""
        raise NotImplementedError

    def _changed(self, trainer: Trainer) -> contextlib.AbstractContextManager[None]:
        """Change the trainer for the time of the training."""
        return contextlib.nullcontext()

    def _place(self) -> dict[str, Any]:
        """Return the state that the trainer needs to continue."""
        assert self._trainer is not None
        state = json.dumps(dataclasses.asdict(self._trainer.state))
        return {"state": state, "callbacks": [of.state()["attributes"] for of in self._stateful()]}

    def _stateful(self) -> list[Any]:
        """Return the trainer's callbacks that have a state, such as early stopping."""
        assert self._trainer is not None
        return [of for of in self._trainer.callback_handler.callbacks if isinstance(of, ExportableState)]

    def _restore(self, loaded: dict[str, Any] | None) -> None:
        """Restore the states of the trainer's callbacks."""
        if (loaded or {}).get("state") != (self._from or {}).get("state"):
            raise RolledBack("the job was rolled back; exit, and start this program again")
        if loaded is not None:
            for callback, attributes in zip(self._stateful(), loaded["callbacks"], strict=True):
                vars(callback).update(attributes)

    def _objects(self, of: dict[str, Any]) -> tuple[Any, list[Any]]:
        """Return the optimizer without accelerate's wrapper, and the scheduler and the scaler if they exist."""
        if self._trainer is None:
            raise UsageError("call the callback's train(trainer) instead of trainer.train()")
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        kept = [has_state for has_state in (of["lr_scheduler"], scaler) if has_state is not None]
        return unwrapped(of["optimizer"]), kept

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any
    ) -> TrainerControl:
        """Raise UsageError for epochs of unknown length, except the last: the position could not be restored."""
        if not control.should_training_stop and state.epoch % 1 != 0:
            raise UsageError(
                f"the epoch has ended early, at step {state.global_step} of {state.max_steps}, so a replacement "
                "process could not find its position: give the dataset a length, or make it endless, and omit "
                "callbacks that end an epoch"
            )
        control.should_save &= self._job.slot == 0
        return control


class DataParallelCallback(_Callback):
    """Trains with ``perdure.DataParallel`` in ``transformers.Trainer``. Training survives the death of any process.

    Call ``train`` instead of the trainer's method. The gradients of each step are the means over all slots. The
    trainer's optimizer, scheduler, clipping, accumulation, mixed precision and evaluations are unchanged. Their states,
    those of the trainer and its callbacks, the position in the data, and random numbers are always saved. If a process
    of a slot dies, all roll back to the newest checkpoint. The final model is identical to the last bit.

    Each slot evaluates all of the evaluation data, because its scheduler and callbacks may depend on the result.

    Args:
        job: As in ``perdure.DataParallel``.
        shared: As in ``perdure.DataParallel``. The trainer's optimizer, scheduler and scaler need not be listed.
        state: As in ``perdure.DataParallel``. The trainer's loader need not be listed.

    Example:
        >>> DataParallelCallback(job).train(trainer)
    """

    def __init__(self, job: Job, *, shared: Iterable[Stateful] = (), state: Iterable[Stateful] = ()) -> None:
        self._job, self._steps = job, Steps(job, shared, state)
        self._drawn = 0  # batches of the step
        self._history = (-1, b"")  # the length of the trainer's log, and its encoded form

    def _saved(self, trainer: Trainer) -> dict[str, Any] | None:
        return self._steps.saved()

    @contextlib.contextmanager
    def _changed(self, trainer: Trainer) -> Iterator[None]:
        accelerator = trainer.accelerator
        draw, backward = trainer.get_batch_samples, accelerator.backward

        def get_batch_samples(_: Any, count: int, *of: Any) -> Any:
            if callable(train := getattr(trainer.optimizer, "train", None)):
                train()  # an evaluation may have switched the weights, which do not change after the mark
            samples, items = draw(self._steps.batches(), count, *of)
            self._drawn = len(samples)
            return samples, items

        def exchange(loss: Any, **of: Any) -> None:
            self._steps.before_backward(loss, accelerator.sync_gradients)
            backward(loss, **of)

        evaluates = trainer.args.eval_on_start
        trainer.args.eval_on_start &= self._from is None
        trainer.get_batch_samples, accelerator.backward = get_batch_samples, exchange
        try:
            yield
        finally:
            del trainer.get_batch_samples, accelerator.backward
            trainer.args.eval_on_start = evaluates
            self._steps.let_go()

    def _place(self) -> dict[str, Any]:
        assert self._trainer is not None
        state, control = self._trainer.state, self._trainer.control
        values = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
        log = values.pop("log_history")
        if self._history[0] != len(log):  # a long log is encoded only when it has grown
            self._history = len(log), json.dumps(log).encode()
        return {
            "state": json.dumps(values),
            "log": self._history[1],
            "callbacks": [of.state()["attributes"] for of in self._stateful()],
            "sums": {name: getattr(self._trainer, name) for name in _SUMS if hasattr(self._trainer, name)},
            "stopped": control.should_training_stop and state.global_step < state.max_steps,
        }

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any
    ) -> TrainerControl:
        """Load the weights and the states saved with them."""
        optimizer, kept = self._objects(of)
        assert self._trainer is not None
        batches = Batches(base_of(of["train_dataloader"]))  # accelerate's loader reads one batch ahead
        loaded = self._steps.begin(
            self._trainer.model,
            optimizer,
            kept,
            batches.start,
            batches.generators,
            self._place,
            lambda: Left(state.max_steps - state.global_step, state.max_steps, "steps"),
        )
        self._restore(loaded)
        if loaded is not None:
            for name, value in loaded["sums"].items():
                setattr(self._trainer, name, value.to(args.device) if hasattr(value, "to") else value)
            if loaded["stopped"] or state.global_step >= state.max_steps:
                raise _Nothing
        return control

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any) -> None:
        """Set the loader's epoch. The trainer may have set only that of a copy."""
        if hasattr(of["train_dataloader"], "set_epoch"):
            of["train_dataloader"].set_epoch(math.floor(state.epoch))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Record the step. Only slot 0 saves the trainer's checkpoints."""
        self._steps.stepped(self._drawn)
        control.should_save &= self._job.slot == 0
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any
    ) -> TrainerControl:
        """Start the data again, unless the training ends within them."""
        if state.epoch % 1 == 0:
            self._steps.epoch_ended()
        return super().on_epoch_end(args, state, control, **of)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Wait until all slots are done."""
        self._steps.finish()


class DiLoCoCallback(_Callback):
    """Trains with DiLoCo in ``transformers.Trainer``. Training survives the death of any process.

    Call ``train`` instead of the trainer's method: it makes the trainer continue where an earlier process of the slot
    stopped. The states of the optimizer, its scheduler, the float16 scaler, the trainer with its callbacks, and the
    random number generators are always saved. Batches whose steps count are not drawn again. Drafts are written as
    with ``perdure.DiLoCo``, except for steps that end an epoch or are followed by an evaluation.

    Args:
        job: The job, with consistency ``bsp``.
        sync_every: The number of optimizer steps between two outer steps.
        overlap: As in ``perdure.DiLoCo``. An evaluation after an outer step waits for its result.
        mix: As in ``perdure.DiLoCo``.
        compress: As in ``perdure.DiLoCo``.
        compress_weights: As in ``perdure.DiLoCo``.
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
        overlap: int = 0,
        mix: float | None = None,
        compress: str | None = None,
        compress_weights: str | None = None,
        outer: Rule | None = None,
        weights: Callable[[], float] | None = None,
        state: Iterable[Stateful] = (),
        end: str = "first",
    ) -> None:
        self._outer = Outer(
            job,
            sync_every=sync_every,
            overlap=overlap,
            mix=mix,
            compress=compress,
            compress_weights=compress_weights,
            outer=outer,
            weights=weights,
            state=state,
            end=end,
        )
        self._job = job
        self._amid = False  # whether another process started the first epoch of this one

    def _saved(self, trainer: Trainer) -> dict[str, Any] | None:
        return self._outer.saved(trainer.model)

    @contextlib.contextmanager
    def _changed(self, trainer: Trainer) -> Iterator[None]:
        evaluate, save, own = trainer.evaluate, trainer._save_checkpoint, dict(vars(trainer))

        def evaluate_shared(*args: Any, **of: Any) -> Any:
            with self._outer.shown():
                return evaluate(*args, **of)

        def save_shared(*args: Any, **of: Any) -> Any:
            with self._outer.shown():
                return save(*args, **of)

        trainer.evaluate, trainer._save_checkpoint = evaluate_shared, save_shared
        try:
            yield
        finally:
            for name in ("evaluate", "_save_checkpoint"):
                if name in own:
                    setattr(trainer, name, own[name])
                else:
                    delattr(trainer, name)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any
    ) -> TrainerControl:
        """Load the weights and the states saved with them."""
        inner, kept = self._objects(of)
        assert self._trainer is not None
        self._outer.begin(
            self._trainer.model,
            inner,
            kept,
            self._place,
            lambda: Left(state.max_steps - state.global_step, state.max_steps, "steps"),
            generators=generators_of(base_of(of["train_dataloader"])),
        )
        self._restore(self._outer.place.loaded)
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
        control.should_save &= self._job.slot == 0
        return control

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write no draft of the step before an evaluation: its reader would continue without the evaluation."""
        self._outer.no_draft()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Wait until all slots are done, and load the final model."""
        self._outer.finish()


def _refuse(trainer: Trainer, settings: dict[str, Any]) -> None:
    """Raise UsageError for settings that do not work with these callbacks."""
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
        (args.save_strategy == "best", "choose save_strategy='steps': with 'best' all slots would write checkpoints"),
        (args.ignore_data_skip, "omit ignore_data_skip: batches would be counted twice"),
        (
            not hasattr(trainer, "_load_from_checkpoint"),
            "this version of transformers loads checkpoints differently; use 5.24",
        ),
        (args.auto_find_batch_size, "auto_find_batch_size restarts the step count; choose a batch size instead"),
        (
            _reuses_generations(args),
            "the trainer reuses generations in later steps from a buffer that its state does not contain; choose "
            "num_iterations=1, and gradient_accumulation_steps as a multiple of steps_per_generation",
        ),
    ):
        if wrong:
            raise UsageError(said)


def _reuses_generations(args: TrainingArguments) -> bool:
    """Reports whether a TRL trainer, such as GRPOTrainer, uses the same generations for several optimizer steps."""
    batches: int = (getattr(args, "steps_per_generation", None) or 1) * (getattr(args, "num_iterations", None) or 1)
    return int(args.gradient_accumulation_steps) % batches != 0


@contextlib.contextmanager
def _checkpoint(trainer: Trainer, of: dict[str, Any] | None) -> Iterator[str | None]:
    """Create a checkpoint directory with the trainer's state. It has no weights: those come from the job later."""
    if of is None:
        yield None
        return
    trainer._load_from_checkpoint = lambda *_, **__: None
    try:
        with tempfile.TemporaryDirectory(prefix="perdure-") as folder:
            state = (
                of["state"]
                if "log" not in of
                else json.dumps(json.loads(of["state"]) | {"log_history": json.loads(of["log"])})
            )
            Path(folder, "trainer_state.json").write_text(state, encoding="utf-8")
            yield folder
    finally:
        del trainer._load_from_checkpoint
