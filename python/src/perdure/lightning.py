"""DiLoCo for ``lightning.Trainer``, as a callback."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

try:
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import SingleDeviceStrategy
except ImportError as error:
    raise ImportError(f"perdure.lightning needs lightning ({error}); install it") from None

from ._ending import Left
from ._trainers import Outer
from .errors import UsageError
from .job import Job
from .rules import Rule
from .torch import Stateful


class DiLoCoCallback(pl.Callback):  # type: ignore[misc]
    """Trains with DiLoCo in ``lightning.Trainer``. Training survives the death of any process.

    Pass it in the trainer's ``callbacks``.

    The states of the optimizer, the schedulers, the float16 scaler, the trainer's loops and other callbacks, and the
    random number generators are always saved. Batches whose steps count are not trained again. A loader with
    ``state_dict`` continues at its position; other loaders read those batches again and skip them. Drafts are written
    as with ``perdure.DiLoCo``, except for steps that end an epoch or are followed by an evaluation.

    Args:
        job: The job, with consistency ``bsp``.
        sync_every: The number of optimizer steps between two outer steps.
        outer: As in ``perdure.DiLoCo``.
        weights: As in ``perdure.DiLoCo``.
        state: As in ``perdure.DiLoCo``.
        end: As in ``perdure.DiLoCo``.

    Example:
        >>> trainer = Trainer(max_epochs=3, devices=1, callbacks=[DiLoCoCallback(job)])
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
        self._steps = 0  # optimizer steps counted so far
        self._begun = False  # whether the next epoch's loader has already started

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Raise UsageError if the trainer itself is distributed."""
        if stage == "fit" and not isinstance(trainer.strategy, SingleDeviceStrategy):
            raise UsageError(
                f"{type(trainer.strategy).__name__}: the trainer itself is distributed; use devices=1, and start the "
                "program with perdure launch"
            )

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Load the weights and the states saved with them."""
        if trainer.ckpt_path:
            raise UsageError("omit ckpt_path: the slot's state determines where training continues")
        if len(trainer.optimizers) != 1:
            raise UsageError(f"the module has {len(trainer.optimizers)} optimizers; DiLoCoCallback needs exactly one")
        _drop_loaders(trainer)
        others = [of for of in trainer.callbacks if of is not self]
        schedulers = [of.scheduler for of in trainer.lr_scheduler_configs]
        self._outer.begin(
            pl_module,
            trainer.optimizers[0],
            [*schedulers, trainer.precision_plugin],
            lambda: _place(trainer) | {"callbacks": [of.state_dict() for of in others]},
            lambda: _left(trainer),
            closures=True,
        )
        loaded = self._outer.place.loaded
        if loaded is not None:
            trainer.fit_loop.load_state_dict(loaded["loops"])
            if loaded["epoch_ended"]:
                trainer.fit_loop.epoch_loop.restarting = False
            for callback, state in zip(others, loaded["callbacks"], strict=True):
                callback.load_state_dict(state)
            self._steps = trainer.global_step
        amid = loaded is not None and not loaded["epoch_ended"]
        self._outer.begin_epoch(amid)  # the first epoch's loader starts before on_train_epoch_start
        self._begun = not amid
        trainer.should_stop |= self._outer.over

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the loader's position."""
        loop = trainer.fit_loop
        fetcher, loaders = loop._data_fetcher, loop._combined_loader.flattened
        stateful = [of for of in loaders if hasattr(of, "state_dict") and hasattr(of, "load_state_dict")]
        if len(stateful) not in (0, len(loaders)):
            raise UsageError("some loaders have state_dict and some do not; use StatefulDataLoader for all or none")
        loaded = self._outer.place.loaded
        if loaded is None:
            return
        if loaded["epoch_ended"]:
            for of, state in zip(stateful, loaded["loaders"], strict=True):
                of.load_state_dict(state)
                if next(iter(of), None) is not None:  # the saved position is after the epoch's end, not before it
                    of.load_state_dict(state)
            if stateful:
                self._outer.begin_epoch()
                iter(fetcher)
        elif not stateful:
            known = loop.epoch_loop.batch_progress.current.ready
            for _ in range(known):
                next(fetcher)
            fetcher.fetched -= known  # the trainer adds them

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the random number state that an outer step saved, for the loader."""
        if not self._begun:
            self._outer.begin_epoch()
        self._begun = False

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, _: int) -> None:
        """Restore the random number state that the last outer step saved, for the model."""
        self._outer.begin_step()

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any) -> None:
        """Note that the weights are about to change. The closure of the optimizer's step has run the model already."""
        self._outer.step_begins()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, _: int
    ) -> None:
        """Make the outer step if it is due."""
        before, self._steps = self._steps, trainer.global_step
        if self._steps > before:
            ended = trainer.is_last_batch and trainer.current_epoch + 1 == trainer.max_epochs
            self._outer.stepped(before, self._steps, ended or self._steps == trainer.max_steps)
            trainer.should_stop |= self._outer.over

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write no draft of the step before an evaluation: its reader would continue without the evaluation."""
        self._outer.no_draft()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Wait until all slots are done, and load the final model."""
        self._outer.finish()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Do the same if there was nothing left to train, since ``on_train_end`` is not called then."""
        self._outer.finish()


def _left(trainer: pl.Trainer) -> Left | None:
    """Return how many steps the trainer has left, or None if neither the data nor the trainer has an end."""
    steps = trainer.estimated_stepping_batches
    return Left(int(steps) - trainer.global_step, int(steps), "steps") if 0 < steps < math.inf else None


def _drop_loaders(trainer: pl.Trainer) -> None:
    """Drop loaders that exist already, so that the trainer's run makes them after their state is loaded.

    ``configure_optimizers`` makes them when it asks ``trainer.estimated_stepping_batches``. Such loaders would start
    the epoch again, with random numbers from before those that the callback saves for the epoch.
    """
    loop = trainer.fit_loop
    if loop._combined_loader is not None:
        loop._data_fetcher.teardown()
        loop._combined_loader = loop._data_fetcher = None


def _place(trainer: pl.Trainer) -> dict[str, Any]:
    """Return the state of the trainer's loops after a batch. After the last batch, it is that of an ended epoch."""
    loops = trainer.fit_loop.state_dict()
    loaders = loops["state_dict"].get("combined_loader", [])
    if trainer.is_last_batch:
        loops["state_dict"].pop("combined_loader", None)
        for progress in loops["epoch_progress"].values():
            progress["processed"] += 1
            progress["completed"] += 1
        batches = loops["epoch_loop.batch_progress"]
        batches["total"]["completed"] += 1
        batches["current"] = dict.fromkeys(batches["current"], 0)
        batches["is_last_batch"] = False
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] += 1
        return {"loops": loops, "loaders": loaders, "epoch_ended": True}
    return {"loops": loops, "epoch_ended": False}
