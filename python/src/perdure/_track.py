"""Measurements of a job in Weights & Biases, MLflow or TensorBoard, as one run although its processes are replaced."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from .errors import AgentDied, Done, Fenced, Lost, RolledBack, Stopped, UsageError
from .job import Job

#: Errors after which another process continues the run.
_CONTINUES = (AgentDied, Fenced, Lost, RolledBack, Stopped, KeyboardInterrupt)

_RESTARTS, _ROLLBACKS = "perdure/restarts", "perdure/rollbacks"


class _Backend:
    """A run of a tracking service. Steps that it already has are not logged again."""

    def __init__(self, module: ModuleType, name: str, options: dict[str, Any]) -> None:
        """Start or continue the run with this name. options are those of the service's own function."""

    run: Any  #: the object of the service
    restarts = 0  #: number of earlier processes that have logged to the run

    def log(self, values: Mapping[str, Any], step: int) -> None:
        raise NotImplementedError

    def end(self, status: str) -> None:
        """End the run, or this process's part in it. status is finished, failed or continues."""
        raise NotImplementedError


class _Wandb(_Backend):
    """While offline, each process writes a folder of its own. ``wandb sync`` joins them, with a step's first value.

    W&B's own process dies with this one, and writes a file only now and then, so it is asked to write each second.
    """

    def __init__(self, wandb: ModuleType, name: str, options: dict[str, Any]) -> None:
        defaults = {"id": name, "resume": "allow", "settings": {"x_transaction_log_flush_interval": 1.0}}
        self.run = wandb.init(**defaults | options)
        self._first = self.run.step if self.run.resumed else 0
        if self.run.resumed:
            self.restarts = int(self.run.summary.get(_RESTARTS) or 0) + 1
        elif self.run.offline:
            folders = Path(self.run.dir).parents[1].glob(f"offline-run-*-{self.run.id}")
            self.restarts = len(list(folders)) - 1

    def log(self, values: Mapping[str, Any], step: int) -> None:
        if step >= max(self._first, self.run.step):
            self.run.log(dict(values), step=step)

    def end(self, status: str) -> None:
        if status == "continues":
            self.run.mark_preempting()
        self.run.finish(exit_code=int(status != "finished"))


class _MLflow(_Backend):
    """MLflow keeps all values of a step, so those that an earlier process has logged are looked up."""

    def __init__(self, mlflow: ModuleType, name: str, options: dict[str, Any]) -> None:
        self._mlflow, self._client, self._last = mlflow, mlflow.MlflowClient(), dict[str, int]()
        experiment = options.pop("experiment", None)
        if experiment is not None:
            mlflow.set_experiment(experiment)
        tags = {"perdure.job": name} | options.pop("tags", {})
        where = self._experiment(options)
        found = self._client.search_runs([where], f"tags.`perdure.job` = '{name}'", max_results=1)
        if found:
            self.restarts = int(found[0].data.metrics.get(_RESTARTS, 0)) + 1
            options = {"run_id": found[0].info.run_id}
        else:
            options = {"run_name": name, "tags": tags} | options
        self.run = mlflow.start_run(**options)

    def _experiment(self, options: dict[str, Any]) -> str:
        if "experiment_id" in options:
            return str(options["experiment_id"])
        return str(importlib.import_module("mlflow.tracking.fluent")._get_experiment_id())

    def log(self, values: Mapping[str, Any], step: int) -> None:
        new = {key: float(value) for key, value in values.items() if step > self._last_of(key)}
        if new:
            self._mlflow.log_metrics(new, step=step, run_id=self.run.info.run_id)
            self._last |= dict.fromkeys(new, step)

    def _last_of(self, key: str) -> int:
        """Return the last step of a measure that has been logged, also by an earlier process, or -1."""
        if key not in self._last:
            history = self._client.get_metric_history(self.run.info.run_id, key) if self.restarts else []
            self._last[key] = max((m.step for m in history), default=-1)
        return self._last[key]

    def end(self, status: str) -> None:
        self._mlflow.end_run({"finished": "FINISHED", "failed": "FAILED"}.get(status, "KILLED"))


class _TensorBoard(_Backend):
    """TensorBoard discards values from the first step that a new writer logs."""

    def __init__(self, tensorboard: ModuleType, name: str, options: dict[str, Any]) -> None:
        self._writer, self.run, self._last = tensorboard.SummaryWriter, None, -1
        defaults: dict[str, Any] = {"log_dir": f"runs/{name}", "flush_secs": 1}
        self._options = defaults | options
        self.restarts = len(list(Path(self._options["log_dir"]).glob("events.out.tfevents.*")))

    def log(self, values: Mapping[str, Any], step: int) -> None:
        if self.run is None or step < self._last:  # the first step of this process, or after a rollback
            again = self.restarts or self.run is not None
            self.end("continues")
            self.run = self._writer(**({"purge_step": step} if again else {}) | self._options)
        for key, value in values.items():
            self.run.add_scalar(key, float(value), step)
        self._last = step

    def end(self, status: str) -> None:
        if self.run is not None:
            self.run.close()


_BACKENDS: dict[str, tuple[str, type[_Backend], str]] = {
    "wandb": ("wandb", _Wandb, "wandb"),
    "mlflow": ("mlflow", _MLflow, "mlflow-skinny"),
    "tensorboard": ("torch.utils.tensorboard", _TensorBoard, "torch tensorboard"),
}


class Tracked:
    """A job's run in a tracking service: see ``perdure.track``."""

    def __init__(self, job: Job, backend: _Backend | None) -> None:
        self._job, self._backend = job, backend
        self._rollbacks = 0
        self._marked = self._ended = False

    @property
    def run(self) -> Any:
        """The service's own object: a ``wandb.Run``, an ``mlflow.ActiveRun`` or a ``SummaryWriter``.

        None in slots that do not log, and with TensorBoard before the first ``log``.
        """
        return None if self._backend is None else self._backend.run

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Log measures. Nothing happens in slots that do not log.

        Args:
            values: The measures by name.
            step: Their step; the job's current clock if it is omitted. Steps must not decrease, except in a process
                that replaces another one or after a rollback.
        """
        if self._backend is None:
            return
        if self._ended:
            raise UsageError("the run has ended: call log within the with block")
        exchange = self._job._exchange  # of a clock that ends while the program continues
        now = self._job._now() if exchange is None else exchange.before
        clock = now.clock + (exchange is not None)
        faults = {_RESTARTS: float(self._backend.restarts)} if self._backend.restarts and not self._marked else {}
        self._marked = True
        if now.generation - 1 > self._rollbacks:
            self._rollbacks = now.generation - 1
            faults[_ROLLBACKS] = float(self._rollbacks)
        self._backend.log({**values, **faults}, clock if step is None else step)

    def __enter__(self) -> Tracked:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if (backend := self._backend) is None:
            return
        self._ended = True
        if error is None or isinstance(error, Done):
            backend.end("finished")
        elif isinstance(error, SystemExit):
            backend.end("failed" if error.code else "finished")
        else:
            backend.end("continues" if isinstance(error, _CONTINUES) else "failed")


def track(job: Job, service: str, *, name: str | None = None, slot: int = 0, **options: Any) -> Tracked:
    """Log measures to Weights & Biases, MLflow or TensorBoard, as one run although processes are replaced.

    A process that replaces another one continues the run of the job, and steps are not logged twice. The measures
    ``perdure/restarts`` and ``perdure/rollbacks`` show where processes were replaced. If the ``with`` block ends with
    an error after which another process continues, the run is marked as preempted (W&B) or killed (MLflow) until then.

    Args:
        job: The job.
        service: ``wandb``, ``mlflow`` or ``tensorboard``. Its package must be installed.
        name: The name of the run; that of the job if it is omitted.
        slot: The slot whose process logs. The others ignore ``log``.
        options: Arguments of ``wandb.init``, ``mlflow.start_run`` (and ``experiment``, a name) or ``SummaryWriter``.

    Raises:
        UsageError: The service is unknown, or its package is not installed.

    Example:
        >>> with perdure.track(job, "wandb", project="fashion") as run:
        ...     for epoch in job.epochs(3):
        ...         run.log({"loss": train(epoch)})
    """
    if service not in _BACKENDS:
        raise UsageError(f"unknown service {service!r}: choose {', '.join(_BACKENDS)}")
    module, backend, package = _BACKENDS[service]
    if job.slot != slot or (job._island is not None and job._island.rank > 0):
        return Tracked(job, None)
    try:
        service_module = importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise UsageError(f"{service} needs the package {e.name}: pip install {package}") from e
    return Tracked(job, backend(service_module, name or job.spec["id"], dict(options)))
