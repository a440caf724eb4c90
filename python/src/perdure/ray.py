"""A backend of Ray Train: each worker of Ray has a slot of a Perdure job, and Ray replaces workers that die."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

try:
    import ray
    from ray.train.backend import Backend, BackendConfig
    from ray.train.v2._internal.constants import is_v2_enabled
    from ray.train.v2._internal.execution.checkpoint.report_handler import ReportCallbackHandler
    from ray.train.v2._internal.execution.context import get_train_context
    from ray.train.v2._internal.execution.train_fn_utils import DistributedTrainFnUtils, set_train_fn_utils
    from ray.train.v2._internal.execution.worker_group import ReplicaGroup
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise ImportError(f"perdure.ray needs ray[train] 2.60 or newer ({error}); install it") from None

from . import _agent, _nested, job
from .errors import Done, PerdureError, RolledBack, UsageError
from .job import _FROM_RUN, _NEW_JOB, Job, _Owner

_logger = logging.getLogger("ray.train.perdure")  # Ray prints the messages of its loggers

#: How often a training function may fail at one clock before the run ends, as --max-failures of perdure up.
_FAILURES = 5
_POLLS = 10


class PerdureConfig(BackendConfig):  # type: ignore[misc]
    """The backend of a ``TorchTrainer`` whose workers may be killed at any moment.

    The backend starts a Perdure job on the machine of the program that calls ``fit``: a coordinator and servers, which
    outlive Ray's workers. Worker N of Ray has slot N. The training function calls ``perdure.start()``, which joins this
    job. If a worker dies, Ray replaces it alone, and the new one continues from the state in the job. The job ends with
    the run.

    Ray's ``RunConfig`` must allow failures: ``FailureConfig(max_failures=-1)``.

    Args:
        servers: As in ``perdure.start``.
        recovery: As in ``perdure.start``.
        consistency: As in ``perdure.start``.
        clocks: As in ``perdure.start``.
        out: As in ``perdure.start``: the run's directory.
        args: As in ``perdure.start``: more flags of ``perdure up``.
        coordinator: The address of a job with as many slots as Ray has workers. The backend then starts none.
        keys: The directory with a worker's keys of that job. It must exist on each machine.

    Example:
        >>> trainer = TorchTrainer(
        ...     train,
        ...     torch_config=PerdureConfig(servers=2),
        ...     scaling_config=ScalingConfig(num_workers=2),
        ...     run_config=RunConfig(failure_config=FailureConfig(max_failures=-1)),
        ... )
    """

    backend = "perdure"  # TorchTrainer chooses one if this is missing

    def __init__(
        self,
        *,
        servers: int | None = None,
        recovery: str | None = None,
        consistency: str | None = None,
        clocks: int | None = None,
        out: str | os.PathLike[str] | None = None,
        args: Sequence[str] = (),
        coordinator: str = "",
        keys: str = "",
    ) -> None:
        if not is_v2_enabled():
            raise UsageError("PerdureConfig needs the second version of Ray Train: omit RAY_TRAIN_V2_ENABLED=0")
        given = {"servers": servers, "recovery": recovery, "consistency": consistency, "clocks": clocks}
        flags: dict[str, Any] = {} if any(arg.split("=")[0] in _FROM_RUN for arg in args) else dict(_NEW_JOB)
        flags |= {flag: value for flag, value in given.items() if value is not None}
        self.flags = [*(f"--{flag}={value}" for flag, value in flags.items()), *args]
        self.out = os.path.abspath(out) if out is not None else ""
        self.folder = os.getcwd()  # relative paths in flags start here
        self.coordinator, self.keys = coordinator, keys
        if coordinator and (out is not None or args or any(value is not None for value in given.values())):
            raise UsageError("PerdureConfig: the job at the coordinator exists; pass no other settings than keys")

    @property
    def backend_cls(self) -> type[Backend]:
        return _PerdureBackend

    @property
    def train_func_context(self) -> type[_Training]:
        return _Training

    def to_dict(self) -> dict[str, Any]:
        return {"flags": self.flags, "out": self.out, "coordinator": self.coordinator}


class _Servers:
    """An actor next to Ray's controller. It runs ``perdure up``, and decides when the run cannot succeed."""

    def __init__(self, config: PerdureConfig, slots: int) -> None:
        self._slots = slots
        self._refused = ""
        self._failures: Counter[tuple[int, int]] = Counter()
        self._finished: set[int] = set()
        self._owner: _Owner | None = None
        self._settings: dict[str, Any] = {"PERDURE_COORDINATOR": config.coordinator, "PERDURE_KEYS": config.keys}
        self._files: dict[str, bytes] = {}
        self._config = config

    def _start(self, config: PerdureConfig) -> None:
        os.chdir(config.folder)
        folder = Path(config.out or Path(tempfile.mkdtemp(prefix="perdure-")) / "run")
        flags = [f"--workers={self._slots}", *config.flags]
        if not any(flag.split("=")[0] in _FROM_RUN for flag in config.flags):  # a resumed run keeps its keys
            keys = folder.with_name(folder.name + ".keys")
            made = subprocess.run([_agent.binary(), "keys", "new", str(keys)], capture_output=True, text=True)
            if made.returncode != 0:
                raise UsageError(made.stderr.strip().removeprefix("perdure: "))
            flags += [f"--keys={keys}", f"--listen={ray.util.get_node_ip_address()}:0"]
        self._owner = owner = _Owner(folder, flags)
        self._settings |= {"PERDURE_COORDINATOR": owner.coordinator, "PERDURE_RUN": str(folder)}
        if owner.keys:
            self._files = {of.name: of.read_bytes() for of in (Path(owner.keys) / "worker").iterdir()}
        else:
            self._settings["PERDURE_SECRET_FILE"] = owner.secret_file

    def settings(self, slots: int) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return a worker's variables and key files. Raise UsageError if a new worker cannot succeed."""
        if slots != self._slots:
            raise UsageError(f"the job has {self._slots} slots, but Ray has started {slots} workers")
        if self._refused:
            raise UsageError(self._refused)
        if self._owner is None and not self._config.coordinator:
            self._start(self._config)
        if self._owner is not None and self._owner.process.poll():
            raise UsageError("the job has failed: " + " ".join([*self._owner.said][-1:]).removeprefix("perdure: "))
        return self._settings, self._files

    def fail(self, rank: int, clock: int, why: str, final: bool) -> None:
        """Note that a training function has raised an error."""
        self._failures[rank, clock] += 1
        if final or self._failures[rank, clock] >= _FAILURES:
            when = f"at clock {clock}" if clock >= 0 else "before it joined the job"
            times = "" if final else f" has failed {_FAILURES} times {when}"
            self._refused = self._refused or f"worker {rank}{times}: {why}"

    def is_over(self) -> bool:
        """Reports whether the job's work is complete."""
        return self._owner is not None and self._owner.process.poll() == 0

    def finish(self, rank: int) -> None:
        """Note that a training function has returned."""
        self._finished.add(rank)

    def close(self) -> str:
        """Wait until a finished job has written its files. Return an error, or an empty string."""
        if self._owner is None or len(self._finished) < self._slots:
            return ""
        try:
            self._owner.close(finished=True)
        except PerdureError as error:
            return str(error)
        return ""


class _PerdureBackend(Backend):  # type: ignore[misc]
    """Runs in Ray's controller. Ray restarts a worker alone if it is a replica group of its own."""

    has_replica_groups = True

    def __init__(self) -> None:
        self._servers: Any = None
        self._group: Any = None

    def on_start(self, worker_group: Any, backend_config: PerdureConfig) -> None:
        try:
            self._start(worker_group, backend_config)
        except Exception:
            if not isinstance(worker_group, ReplicaGroup):
                worker_group.shutdown()  # Ray would keep its resources
            raise

    def _start(self, worker_group: Any, config: PerdureConfig) -> None:
        if isinstance(worker_group, ReplicaGroup):  # the replacement of a worker
            slots = len(self._group)
        else:
            self._group, slots = worker_group, len(worker_group)
            self._check()
        node = ray.get_runtime_context().get_node_id()
        if self._servers is None:
            here = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
            self._servers = ray.remote(num_cpus=0)(_Servers).options(scheduling_strategy=here).remote(config, slots)
        variables, files = _get(self._servers.settings.remote(slots))
        worker_group.execute(_prepare, self._servers, node, slots, variables, files)

    def _check(self) -> None:
        context = self._group._train_run_context
        if context.scaling_config.elasticity_enabled:
            raise UsageError("PerdureConfig needs a fixed number of workers: use ScalingConfig(num_workers=N)")
        if context.run_config.failure_config.max_failures == 0:
            _logger.warning(
                "FailureConfig(max_failures=0) is Ray's default and ends the run with the first worker that dies; use "
                "RunConfig(failure_config=FailureConfig(max_failures=-1))"
            )
        for callback in self._group._callbacks:
            if isinstance(callback, ReportCallbackHandler):
                callback.set_required_ranks([0])  # a new worker may repeat a report, or miss one

    def on_shutdown(self, worker_group: Any, backend_config: PerdureConfig) -> None:
        if isinstance(worker_group, ReplicaGroup):
            for _ in range(_POLLS):  # Ray drops the reports that it has not taken when a worker is replaced
                if not self._group.poll_status(timeout=1).worker_statuses[0].training_report:
                    return
        elif self._servers is not None and (why := _get(self._servers.close.remote())):
            raise PerdureError(why)


def _get(ref: Any) -> Any:
    """Return an actor's reply, or raise its error without Ray's traceback."""
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.ActorDiedError as error:
        raise UsageError(f"the process that runs the job's servers has died: {error}") from None


class _State:
    """The state of a worker's process."""

    servers: Any = None
    rank = slots = 0
    job: Job | None = None
    clock = -1  # when the job was closed
    keys: Path | None = None  # the directory that _prepare has written


def _prepare(servers: Any, node: str, slots: int, variables: dict[str, str], files: dict[str, bytes]) -> None:
    """Prepare a worker's process for the training function."""
    context = get_train_context()
    _State.servers, _State.rank, _State.slots = servers, context.get_world_rank(), slots
    ours = {"PERDURE_SLOT": _State.rank, **_nested.ranks(_State.rank, slots)}
    ours |= {"LOCAL_RANK": context.get_local_rank(), "LOCAL_WORLD_SIZE": context.get_local_world_size()}
    ours |= {"GROUP_RANK": context.get_node_rank()}
    if node != ray.get_runtime_context().get_node_id():
        variables.pop("PERDURE_RUN", None)
    os.environ.update({name: str(value) for name, value in (ours | variables).items() if value != ""})
    if files:
        name = f"perdure-{os.getuid()}-{ray.get_runtime_context().get_job_id()}-{variables['PERDURE_COORDINATOR']}"
        keys = Path(tempfile.gettempdir()) / f"{name}-{_State.rank}"  # the next process replaces it
        shutil.rmtree(keys, ignore_errors=True)
        keys.mkdir(mode=0o700)
        for of, data in files.items():
            (keys / of).touch(mode=0o600)
            (keys / of).write_bytes(data)
        os.environ["PERDURE_KEYS"] = str(keys)
        _State.keys = keys
    if _State.rank == 0:
        context._sync_checkpoint_dir_name_across_ranks = lambda name=None: (
            name or context.storage_context.make_default_checkpoint_dir_name()
        )
    set_train_fn_utils(_TrainFnUtils())
    job.on_join = _joined
    if importlib.util.find_spec("torch") is not None:
        _refuse_ddp()


def _joined(of: Job) -> None:
    close = of.close

    def closing() -> None:
        with contextlib.suppress(PerdureError):
            _State.clock = int(of.now)
        close()

    of.close = closing  # type: ignore[method-assign]
    _State.job = of
    if of.spec["slots"] != _State.slots:
        raise UsageError(f"the job has {of.spec['slots']} slots, but Ray has started {_State.slots} workers")


class _TrainFnUtils(DistributedTrainFnUtils):  # type: ignore[misc]
    """Ray's functions for a training function, without waiting for other workers, which may be replaced meanwhile."""

    def report(self, metrics: dict[str, Any], checkpoint: Any = None, *args: Any, **more: Any) -> None:
        if _State.rank > 0:
            if checkpoint is not None:
                raise UsageError("ray.train.report: only the worker of rank 0 may report a checkpoint")
            return
        super().report(metrics, checkpoint, *args, **more)
        if checkpoint is not None:
            get_train_context().get_result_queue().join()  # until Ray has it: a new worker may not report it again

    def get_dataset_shard(self, dataset_info: Any) -> Any:
        raise UsageError(
            "ray.train.get_dataset_shard has no position that a new worker could continue from; read the data in the "
            "training function, with perdure.Sampler"
        )

    def get_preemption_info(self) -> Any:
        return get_train_context().preemption_context.preemption_info

    def barrier(self) -> None:
        raise UsageError("ray.train.collective.barrier would wait for a worker that has been replaced; omit it")

    def broadcast_from_rank_zero(self, data: Any) -> Any:
        raise UsageError(
            "ray.train.collective.broadcast_from_rank_zero would wait for a worker that has been replaced; use a table"
        )


def _refuse_ddp() -> None:
    """Let Ray's functions for PyTorch refuse what would bypass the job."""
    utils = importlib.import_module("ray.train.v2.torch.train_loop_utils")
    facade = importlib.import_module("ray.train.torch")
    model, loader = utils.prepare_model, utils.prepare_data_loader

    @functools.wraps(model)
    def prepare_model(
        of: Any, move_to_device: Any = True, parallel_strategy: str | None = "ddp", *args: Any, **more: Any
    ) -> Any:
        if parallel_strategy is not None:
            raise UsageError(
                f"prepare_model would wrap the model in Ray's {parallel_strategy.upper()}, whose process group ends "
                "with a worker; pass parallel_strategy=None, and train with perdure.DataParallel or perdure.DiLoCo"
            )
        return model(of, move_to_device, parallel_strategy, *args, **more)

    @functools.wraps(loader)
    def prepare_data_loader(of: Any, add_dist_sampler: bool = True, *args: Any, **more: Any) -> Any:
        if add_dist_sampler:
            raise UsageError(
                "prepare_data_loader would replace the loader's sampler, whose position is not saved; pass "
                "add_dist_sampler=False, and use perdure.Sampler"
            )
        return loader(of, add_dist_sampler, *args, **more)

    for module in utils, facade:
        vars(module).update(prepare_model=prepare_model, prepare_data_loader=prepare_data_loader)


class _Training:
    """The context of a training function."""

    def __enter__(self) -> None:
        _State.job, _State.clock = None, -1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        of, servers, rank = _State.job, _State.servers, _State.rank
        if error is None:
            if of is None:
                error = UsageError("the training function has returned without a call of perdure.start()")
            else:
                try:
                    if not of._finished:
                        of.finish()
                finally:
                    of.close()
                if _State.keys is not None:
                    shutil.rmtree(_State.keys, ignore_errors=True)
                ray.get(servers.finish.remote(rank))
                return False
            ray.get(servers.fail.remote(rank, -1, str(error), True))
            raise error
        over = isinstance(error, Done) or isinstance(error.__context__, Done)
        if of is None and (over or ray.get(servers.is_over.remote())):
            _logger.warning(
                "the job was complete when this worker started, so its training function is not repeated: %s", error
            )
            ray.get(servers.finish.remote(rank))
            return True
        ended = of is not None and of._finished
        if of is not None:
            of.close()
        if not isinstance(error, RolledBack):
            why = str(error) if isinstance(error, PerdureError) else f"{type(error).__name__}: {error}"
            why = f"after the end of the job: {why}" if ended else why
            ray.get(servers.fail.remote(rank, _State.clock, why, ended or isinstance(error, UsageError)))
        return False
