"""A trainer for torchtitan. Training survives the death of any process.

``main`` replaces ``torchtitan.train.main``. It trains any configuration of torchtitan's registry whose trainer is
``torchtitan.trainer.Trainer``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

try:
    import torchtitan.train
    from torchtitan.components.dataloader import DataloaderExhaustedError
    from torchtitan.config import ConfigManager
    from torchtitan.trainer import Trainer as _Trainer
except ImportError as error:
    raise ImportError(f"perdure.torchtitan needs torchtitan ({error}); install it") from None

from . import _island
from ._parallel import DataParallel
from .errors import Refused, UsageError
from .job import Job, Share, start
from .rules import Nesterov, Set
from .torch import DiLoCo, _random, _set_random


@dataclass(kw_only=True, slots=True)
class Perdure:
    """The settings of ``perdure.torchtitan.Trainer``, in the section ``perdure`` of its configuration.

    Args:
        mode: ``diloco``: learners average their weights every ``sync_every`` steps. ``data_parallel``: slots average
            their gradients at each step. All other settings belong to ``diloco``.
        sync_every: The number of steps between two outer steps.
        outer_lr: The learning rate of the outer rule, Nesterov.
        outer_momentum: The momentum of the outer rule.
        compress: As in ``perdure.DiLoCo``.
        compress_weights: As in ``perdure.DiLoCo``.
    """

    mode: Literal["diloco", "data_parallel"] = "diloco"
    sync_every: int = 100
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    compress: Literal["bf16", "int8", "2bit"] | None = None
    compress_weights: Literal["bf16", "int8"] | None = None


class Trainer(_Trainer):  # type: ignore[misc]
    """A ``torchtitan.trainer.Trainer`` whose training survives the death of any process.

    In mode ``diloco`` each learner is an island of ranks, within which torchtitan shards the model by FSDP2, and
    ``perdure.DiLoCo`` averages the learners. In mode ``data_parallel`` each slot is one process or an island, and
    ``perdure.DataParallel`` averages the gradients of each step.

    The weights, optimizers, schedulers, the loader's position, steps, tokens and random numbers are always saved. They,
    and not torchtitan's checkpoints, determine where a replacement process continues. Slot 0 writes checkpoints if they
    are enabled. The data are divided among the ranks of all slots. Each slot has its own part of ``dump_folder``.

    Args:
        config: The configuration. Its section ``perdure`` has the settings.

    Raises:
        UsageError: A setting is not supported; the message names it.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(_Trainer.Config):  # type: ignore[misc]
        """The configuration of torchtitan's trainer, with the section ``perdure``."""

        perdure: Perdure = field(default_factory=Perdure)

    def __init__(self, config: Any) -> None:
        _refuse(config)
        of = config.perdure
        self.job = job = start()
        if job._island is None:  # torchtitan needs a process group
            os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
            os.environ.setdefault("LOCAL_RANK", "0")
        built: list[int] = []
        training = dataclasses.replace(config.training)
        if training.global_batch_size > 0:  # torchtitan counts the ranks of one slot
            if training.global_batch_size % job.share.of:
                raise UsageError(
                    f"training.global_batch_size {training.global_batch_size} is not a multiple of the {job.share.of} "
                    "slots; choose one that is"
                )
            training.global_batch_size //= job.share.of
        super().__init__(
            dataclasses.replace(
                config,
                training=training,
                dataloader=_divided(config.dataloader, job.share, built),
                dump_folder=os.path.join(config.dump_folder, f"slot-{job.slot}"),
            )
        )
        if not built:
            raise UsageError("override.imports replaces the dataloader, whose data would not be divided; omit it")
        _refuse_other_sizes(job, built[0])
        self._load_first()
        if self.config.validator.enable:
            self._keep_random()
        optimizers, schedulers = list(self.optimizers), list(self.lr_schedulers)
        (model,) = self.model_parts
        self._training: DiLoCo | DataParallel
        if of.mode == "diloco":
            self._training = DiLoCo(
                job,
                model,
                optimizers,
                sync_every=of.sync_every,
                compress=of.compress,
                compress_weights=of.compress_weights,
                outer=Nesterov(of.outer_lr, of.outer_momentum),
                schedulers=schedulers,
                state=[self, self.dataloader],
            )
            self.lr_schedulers.step = lambda: None  # DiLoCo steps the schedulers, before it saves them
        else:
            if self.optimizers._optimizer_step_pre_hooks:
                raise UsageError(
                    "the load balancing of the model's experts changes buffers in each slot; use perdure.mode diloco"
                )
            # Nothing depends on the loss, so a replacement may copy the state of a living process.
            copy = job._island is None
            self._training = DataParallel(
                job, model, optimizers, shared=schedulers, state=[self, self.dataloader], copy=copy
            )
            self._marks = self._training.steps(config.training.steps)
            self._left = 0  # batches of the step whose gradients are still to be computed

    def _load_first(self) -> None:
        """Load torchtitan's initial checkpoint in the first processes of a job, and let only slot 0 write any."""
        checkpoint = self.config.checkpoint
        frozen = any(not p.requires_grad for m in self.model_parts for p in m.parameters())
        if checkpoint.enable and checkpoint.initial_load_path and frozen:
            raise UsageError(
                "checkpoint.initial_load_path does not work with frozen parameters, which a replacement process would "
                "not load; omit it"
            )
        if self.job.now == 0:
            self.checkpointer.load(step=checkpoint.load_step)
            if self.step:
                raise UsageError(
                    f"{self.config.dump_folder} has checkpoints of another job, up to step {self.step}: choose another "
                    "dump_folder, or set checkpoint.initial_load_path to start from the weights of one"
                )
        self.checkpointer.load = lambda step=-1: False  # the slot's state determines where training continues
        if self.job.slot > 0:
            self.checkpointer.enable = False

    def _keep_random(self) -> None:
        """Let validations draw no random numbers of the training: a replacement process does not repeat them."""
        validate = self.validator.validate

        def kept(*args: Any, **of: Any) -> Any:
            before = _random()
            try:
                return validate(*args, **of)
            finally:
                _set_random(before)

        self.validator.validate = kept

    def forward_backward_step(self, **of: Any) -> Any:
        """Compute gradients like torchtitan's trainer. Those of a step's last batches are exchanged."""
        if isinstance(self._training, DataParallel):
            self._left -= 1
            self._training.require_backward_grad_sync = self._left == 0
        return super().forward_backward_step(**of)

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        """Make a step like torchtitan's trainer."""
        if isinstance(self._training, DataParallel):
            self.step -= 1  # at the mark, as after the last step
            next(self._marks)
            self.step += 1
            self._left = self.gradient_accumulation_steps
        try:
            super().train_step(data_iterator)
        except DataloaderExhaustedError:
            if isinstance(self._training, DataParallel):
                self._training._unmark()
            raise
        if self.step == self.config.training.steps and isinstance(self._training, DiLoCo) and self._training._steps:
            self._training.sync()  # before torchtitan writes its last checkpoint

    def train(self) -> None:
        """Train like torchtitan's trainer. When it returns, all slots have the same model.

        Raises:
            RolledBack: The job was rolled back. Exit, and start this program again.
        """
        with self._training:
            super().train()


class _Manager(ConfigManager):  # type: ignore[misc]
    """Loads configurations as those of ``perdure.torchtitan.Trainer``."""

    def _load_config(self, args: list[str]) -> tuple[object, list[str]]:
        loaded, left = super()._load_config(args)
        return config(loaded), left


def config(of: Any, **settings: Any) -> Trainer.Config:
    """Return a configuration of torchtitan's trainer as one of ``perdure.torchtitan.Trainer``.

    Args:
        of: The configuration, such as ``torchtitan.models.llama3.config_registry.llama3_8b()``.
        settings: Settings of the section ``perdure``.

    Raises:
        UsageError: It belongs to another trainer.

    Example:
        >>> perdure.torchtitan.config(llama3_8b(), mode="diloco", sync_every=100)
    """
    if isinstance(of, Trainer.Config):
        return dataclasses.replace(of, perdure=dataclasses.replace(of.perdure, **settings))
    if type(of) is not _Trainer.Config:
        raise UsageError(
            f"this configuration belongs to {of._owner.__name__}, a trainer of its own, such as that for torchft; "
            "choose one of torchtitan.trainer.Trainer"
        )
    fields = {f.name: getattr(of, f.name) for f in dataclasses.fields(of)}
    return Trainer.Config(**fields, perdure=Perdure(**settings))


def main() -> None:
    """Run torchtitan's program, with the configuration that its flags name.

    Example:
        >>> import perdure.torchtitan
        >>> perdure.torchtitan.main()
    """
    torchtitan.train.ConfigManager = _Manager
    torchtitan.train.main()


def _divided(config: Any, share: Share, built: list[int]) -> Any:
    """Return the configuration of a dataloader that reads the data of this slot's ranks.

    Args:
        config: The configuration of a dataloader that divides all data among the ranks of one slot.
        share: The slot's share of the data.
        built: Receives the number of ranks of this slot among which the data are divided.
    """
    kind = type(config)

    def build(self: Any, *, dp_world_size: int, dp_rank: int, **of: Any) -> Any:
        built.append(dp_world_size)
        return kind.build(
            self, dp_world_size=dp_world_size * share.of, dp_rank=share.rank * dp_world_size + dp_rank, **of
        )

    made = type(kind.__name__, (kind,), {"__slots__": (), "__module__": kind.__module__, "build": build})
    return made(**{f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.init})


def _refuse_other_sizes(job: Job, ranks: int) -> None:
    """Raise UsageError unless all slots divide their data among equally many ranks."""
    island = job._island
    if island is not None and island.rank > 0:
        return
    with contextlib.nullcontext() if island is None else island.failing():
        try:
            job.table("torchtitan.ranks", job.spec["shards"], dim=ranks, rule=Set())
        except (UsageError, Refused):
            raise UsageError(
                f"this slot divides its data among {ranks} ranks, but another slot among more or fewer; choose equal "
                "learners with --nproc-per-learner"
            ) from None


def _refuse(config: Any) -> None:
    """Raise UsageError for settings that do not work."""
    of: Perdure = config.perdure
    parallel, islands = config.parallelism, bool({_island.VARIABLE, _island.TORCHRUN} & set(os.environ))
    for name in ("tensor", "pipeline", "context", "expert"):
        if (degree := getattr(parallel, f"{name}_parallel_degree")) > 1:
            raise UsageError(
                f"parallelism.{name}_parallel_degree {degree} is not supported: choose 1; a learner shards its model "
                "by FSDP2 alone"
            )
    if parallel.data_parallel_replicate_degree > 1:
        raise UsageError(
            f"parallelism.data_parallel_replicate_degree {parallel.data_parallel_replicate_degree} is not supported: "
            "choose 1, and more learners"
        )
    if not config.training.disable_cuda_graphs:
        raise UsageError("CUDA graphs do not run Perdure's hooks; add --training.disable-cuda-graphs")
    if config.comm.mode != "default":
        raise UsageError(f"comm.mode {config.comm.mode} is not supported; choose default")
    if config.checkpoint.create_seed_checkpoint:
        raise UsageError("omit checkpoint.create_seed_checkpoint: slot 0 distributes the initial weights")
    if of.mode == "diloco" and not islands:
        raise UsageError(
            "perdure.mode diloco: add --nproc-per-learner R to perdure launch, with the number of ranks of a learner, "
            "or 1; or choose perdure.mode data_parallel"
        )
    if of.mode == "data_parallel":
        changed = [f.name for f in dataclasses.fields(of) if f.name != "mode" and getattr(of, f.name) != f.default]
        if changed:
            raise UsageError(f"perdure.{changed[0]} belongs to diloco; omit it, or choose perdure.mode diloco")
