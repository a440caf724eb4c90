"""Callbacks for ``lightning.Trainer``."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

try:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, StochasticWeightAveraging
    from lightning.pytorch.loops.fetchers import _PrefetchDataFetcher
    from lightning.pytorch.loops.loop import _Loop
    from lightning.pytorch.strategies import SingleDeviceStrategy
except ImportError as error:
    raise ImportError(f"perdure.lightning needs lightning ({error}); install it") from None

import torch
from torch.optim import LBFGS

from ._ending import Left
from ._trainers import Batches, Outer, Steps, generators_of
from .errors import Done, UsageError
from .job import Job
from .rules import Rule
from .torch import Stateful, _random, _set_random


class _Callback(pl.Callback):  # type: ignore[misc]
    """The common part of the callbacks."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Raise UsageError if the trainer itself is distributed."""
        if stage == "fit" and not isinstance(trainer.strategy, SingleDeviceStrategy):
            raise UsageError(
                f"{type(trainer.strategy).__name__}: the trainer itself is distributed; use devices=1, and start the "
                "program with perdure launch"
            )


class DataParallelCallback(_Callback):
    """Trains with ``perdure.DataParallel`` in ``lightning.Trainer``. Training survives the death of any process.

    Pass it in the trainer's ``callbacks``.

    The gradients of each step are the means over all slots. The module's optimizers and schedulers, clipping,
    accumulation, mixed precision and validation are unchanged. Their states, those of the trainer's loops and other
    callbacks, the position in the data, and random numbers are always saved. If a process of a slot dies, all roll back
    to the newest checkpoint. The final model is identical to the last bit.

    With manual optimization, each ``training_step`` makes one ``manual_backward``, and then steps of the optimizers.
    Each slot validates on all of the validation data, because schedulers and callbacks may depend on the result.

    Args:
        job: As in ``perdure.DataParallel``.
        shared: As in ``perdure.DataParallel``. The module's optimizers and schedulers, and the float16 scaler, need not
            be listed.
        state: As in ``perdure.DataParallel``. The loader need not be listed.

    Example:
        >>> trainer = Trainer(max_epochs=3, devices=1, callbacks=[DataParallelCallback(job)])
    """

    def __init__(self, job: Job, *, shared: Iterable[Stateful] = (), state: Iterable[Stateful] = ()) -> None:
        self._steps, self._source = Steps(job, shared, state), _Source()
        self._loaded: dict[str, Any] = {}  # the state to restore when the first step begins
        self._drawn = 0  # batches since the mark
        self._cut = False  # whether the job's work has ended before the trainer's
        self._ids: list[int] = []  # of the optimizers and schedulers
        self._had: list[torch.nn.Parameter] = []  # parameters that had a gradient in the saved state

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Load the weights and the states saved with them."""
        _refuse(trainer)
        self._ids = [id(of) for of in _objects(trainer)]
        self._source.replace(trainer.fit_loop)
        others = [of for of in trainer.callbacks if of is not self]
        loaded = self._steps.begin(
            pl_module,
            trainer.optimizers,
            [*(of.scheduler for of in trainer.lr_scheduler_configs), trainer.precision_plugin],
            self._source.start,
            self._source.generators,
            lambda: self._place(trainer) | {"callbacks": [of.state_dict() for of in others]},
            lambda: _left(trainer),
        )
        assert self._steps.training is not None
        self._steps.training._closures = True
        self._had = [p for p in pl_module.parameters() if p.grad is not None]
        loop = trainer.fit_loop
        if loaded is not None:
            loop.load_state_dict(loaded["loops"])
            loop.epoch_loop.restarting = False  # Lightning restarts after a batch, and not before one
            for callback, state in zip(others, loaded["callbacks"], strict=True):
                callback.load_state_dict(state)
            trainer.should_stop = loaded["stopped"]
            self._loaded = loaded
        advance = loop.epoch_loop.advance
        loop.epoch_loop.advance = lambda fetcher: self._advance(trainer, advance, fetcher)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore which parameters have a gradient, since the trainer has removed all gradients."""
        for p in self._had:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad

    def _advance(self, trainer: pl.Trainer, advance: Callable[[Any], None], fetcher: Any) -> None:
        """Train one batch. It may begin a step, or end one."""
        steps, training = self._steps, self._steps.training
        assert training is not None
        if [id(of) for of in _objects(trainer)] != self._ids:
            raise UsageError("a callback has replaced an optimizer or a scheduler, whose state is not saved; omit it")
        self._restore(trainer)
        try:
            steps.batches()
            advance(fetcher)
        except Done:
            self._cut = trainer.should_stop = True
            raise StopIteration from None
        except StopIteration:
            steps.no_step()
            self._drawn = 0
            raise
        self._merge(trainer.fit_loop)
        self._drawn += 1
        if training._open:
            return
        steps.stepped(self._drawn)
        self._drawn = 0
        scales = getattr(trainer.precision_plugin, "scaler", None) is not None
        if not training._stepped and not scales:
            raise UsageError(
                "training_step made no step of an optimizer after its backward pass, whose gradients a replacement "
                "process would lack: step an optimizer in each training_step"
            )

    def _restore(self, trainer: pl.Trainer) -> None:
        """Restore the metrics and the progress within an epoch, which Lightning has reset meanwhile."""
        loop, loops = trainer.fit_loop, self._loaded.pop("loops", None)
        if loops is None:
            return
        trainer.accumulate_grad_batches = self._loaded["accumulate"]
        trainer._logger_connector._callback_metrics.update(self._loaded["metrics"])
        epoch = loops["epoch_progress"]["current"]
        if epoch["ready"] > epoch["processed"]:
            loop.load_state_dict(loops)
            _Loop.restarting.fset(loop, False)  # that of the fit loop ignores False

    def _merge(self, loop: Any) -> None:
        """Add the values that earlier processes have logged in this epoch."""
        saved, results = self._loaded.get("results", {}), loop.epoch_loop._results
        for key in [key for key in saved if key in results and not results[key].has_reset]:
            (value, weight), now = saved.pop(key), results[key]
            if now.meta.is_max_reduction or now.meta.is_min_reduction:
                now.value = now.meta.reduce_fx(value, now.value)
            else:
                now.value = value + now.value
            if weight is not None:
                now.cumulated_batch_size = weight + now.cumulated_batch_size

    def _place(self, trainer: pl.Trainer) -> dict[str, Any]:
        """Return the state that the trainer needs to continue."""
        loops = trainer.fit_loop.state_dict()
        results = trainer.fit_loop.epoch_loop._results.items()
        return {
            "loops": loops,
            "accumulate": trainer.accumulate_grad_batches,
            "stopped": trainer.should_stop and not self._cut,
            "metrics": dict(trainer._logger_connector._callback_metrics),
            "results": self._loaded.get("results", {})
            | {
                key: (of.value, getattr(of, "cumulated_batch_size", None))
                for key, of in results
                if of.is_tensor and of.meta.on_epoch and not of.has_reset
            },
        }

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: torch.Tensor) -> None:
        """Let the backward pass end with the exchange of gradients, unless they are accumulated."""
        ends = not (pl_module.automatic_optimization and trainer.fit_loop._should_accumulate())
        assert self._steps.training is not None
        if ends and not self._steps.training._open:
            raise UsageError(
                "training_step makes a second backward pass: sum up the losses, and call manual_backward once; "
                "optimizers with losses of their own, as those of a GAN, are not supported"
            )
        self._steps.before_backward(loss, ends)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the data again, unless the training ends within them."""
        if self._cut:
            raise StopIteration  # out of the loop over epochs, whatever min_epochs and min_steps are
        if trainer.is_last_batch:
            self._steps.epoch_ended()
        self._loaded = {}

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Wait until all slots are done."""
        self._steps.finish()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Do the same if there was nothing left to train, since ``on_train_end`` is not called then."""
        self._steps.finish()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Undo the changes of the trainer and the module."""
        vars(trainer.fit_loop.epoch_loop).pop("advance", None)
        self._steps.let_go()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Do the same after an error."""
        self.teardown(trainer, pl_module, "fit")


class DiLoCoCallback(_Callback):
    """Trains with DiLoCo in ``lightning.Trainer``. Training survives the death of any process.

    Pass it in the trainer's ``callbacks``.

    The states of the optimizer, the schedulers, the float16 scaler, the trainer's loops and other callbacks, and the
    random number generators are always saved. Batches whose steps count are not trained again. A loader with
    ``state_dict`` continues at its position; other loaders read those batches again and skip them. Drafts are written
    as with ``perdure.DiLoCo``, except for steps that end an epoch or are followed by an evaluation.

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
        >>> trainer = Trainer(max_epochs=3, devices=1, callbacks=[DiLoCoCallback(job)])
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
        self._shown = contextlib.ExitStack()  # during a validation
        self._steps = 0  # optimizer steps counted so far
        self._begun = False  # whether the next epoch's loader has already started

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
        # Lightning has started the loaders, so their generators have changed already.
        samplers = (getattr(of, name, None) for of in loaders for name in ("sampler", "batch_sampler"))
        if not stateful and any(map(generators_of, samplers)):
            raise UsageError(
                "the loader's sampler has a generator of its own, whose state is not saved: omit generator=, so that "
                "the order follows torch.manual_seed, or use a StatefulDataLoader"
            )
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
        self._shown.close()
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
        self._shown.enter_context(self._outer.shown())  # until the next batch, since checkpoints may follow

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Restore the slot's own weights after an error."""
        self._shown.close()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Wait until all slots are done, and load the final model."""
        self._shown.close()
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


class _Source:
    """A loader in the trainer's place for it. Its batches start only when a step begins."""

    def __init__(self) -> None:
        self._begun: Iterator[Any] = iter(())
        self.generators: list[torch.Generator] = []

    def replace(self, loop: Any) -> None:
        """Replace the loader of the fit loop, so that an epoch's batches start after the mark of its first step."""
        before = _random()
        loop.setup_data()  # starts the loader
        _set_random(before)
        if loop._combined_loader is None:  # limit_train_batches=0
            return
        combined, self._fetcher = loop._combined_loader, loop._data_fetcher
        if len(combined.flattened) != 1:
            raise UsageError(
                f"the trainer has {len(combined.flattened)} training loaders; DataParallelCallback needs exactly one"
            )
        if not isinstance(self._fetcher, _PrefetchDataFetcher):
            raise UsageError("training_step draws batches itself; use batch instead of dataloader_iter")
        combined.reset()  # ends the workers of the iterator that the trainer has created
        (self._loader,) = combined.flattened
        self._batches = Batches(self._loader)
        self.generators = self._batches.generators
        combined.flattened = [self]
        iter(self._fetcher)  # the trainer asks for its length, also if it trains no more

    def start(self, skip: int) -> Iterator[Any]:
        """Start an epoch at a given batch."""
        self._begun = self._batches.start(skip)
        batches: Iterator[Any] = iter(self._fetcher)
        self._fetcher.fetched += skip
        return batches

    def __iter__(self) -> Iterator[Any]:
        begun, self._begun = self._begun, iter(())
        return begun

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("state_dict", "load_state_dict"):  # the position is the callback's
            raise AttributeError(name)
        return getattr(self._loader, name)


def _objects(trainer: pl.Trainer) -> list[Any]:
    return [*trainer.optimizers, *(of.scheduler for of in trainer.lr_scheduler_configs)]


def _refuse(trainer: pl.Trainer) -> None:
    """Raise UsageError for settings that do not work with DataParallel."""
    hidden = [type(of).__name__ for of in trainer.callbacks if type(of).on_save_checkpoint is not _HOOK]
    changing = [type(of).__name__ for of in trainer.callbacks if isinstance(of, _CHANGING)]
    for wrong, said in (
        (trainer.ckpt_path, "omit ckpt_path: the slot's state determines where training continues"),
        (
            any(isinstance(of, LBFGS) for of in trainer.optimizers),
            "LBFGS computes gradients several times in one step; choose another optimizer",
        ),
        (
            trainer.reload_dataloaders_every_n_epochs,
            "omit reload_dataloaders_every_n_epochs: the position in a new loader would not be known",
        ),
        (hidden, f"{', '.join(hidden)} has its state in on_save_checkpoint, which is not called; use state_dict"),
        (
            changing,
            f"omit {', '.join(changing)}: it replaces optimizers, schedulers or loaders, whose state is not saved",
        ),
    ):
        if wrong:
            raise UsageError(said)


_HOOK = pl.Callback.on_save_checkpoint
_CHANGING = (BatchSizeFinder, LearningRateFinder, StochasticWeightAveraging)
