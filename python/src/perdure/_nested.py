"""Sets the environment of slots under hosts, and explains errors of torch.distributed in slots of one process."""

from __future__ import annotations

import atexit
import os
import re
import sys
from types import TracebackType
from typing import NoReturn

from . import _island
from .errors import UsageError

_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")

_SAYS = "a slot started without --nproc-per-learner is one process, which is not a member of a process group"
_MAX_CAUSES = 10
_USAGE = 2  # exit code: another attempt would fail as well
_hides = False  # whether RANK and similar variables are removed


def hide_ranks() -> None:
    """Remove the variables that make accelerate and Hugging Face's trainer form a process group.

    Processes of other programs keep them, as do those of an island, whose ranks are in a group.
    """
    global _hides
    _hides = True
    if "PERDURE_COORDINATOR" in os.environ and not {_island.VARIABLE, _island.TORCHRUN} & set(os.environ):
        for name in _RANKS:
            os.environ.pop(name, None)


def show_ranks(slot: int, slots: int, island: bool = False) -> list[str]:
    """Set the variables that ``perdure launch`` sets, in a process started by a host. Return the new names.

    In an island the ranks are those of the process group.
    """
    ours = ranks(slot, slots) | {"PERDURE_SLOT": slot} | _of_launcher()
    if island or _hides:
        ours = {"PERDURE_SLOT": slot}
    new = [name for name in ours if name not in os.environ]
    os.environ.update({name: str(ours[name]) for name in new})
    explain()
    return new


def ranks(slot: int, slots: int) -> dict[str, int]:
    """Return torchrun's variables of a slot, except those that depend on the machine."""
    return {"RANK": slot, "ROLE_RANK": slot, "WORLD_SIZE": slots, "ROLE_WORLD_SIZE": slots}


def _of_launcher() -> dict[str, int]:
    """Return the variables of a slot that srun or Kubeflow has started. A host's programs have them from the host."""
    return _of_slurm() or _of_kubeflow()


def _of_kubeflow() -> dict[str, int]:
    """Return the variables of a slot that is a node of Kubeflow Trainer: torchrun, which is not used, reads PET_…"""
    node = os.environ.get("PET_NODE_RANK", "")
    return {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": int(node)} if node.isdecimal() else {}


def _of_slurm() -> dict[str, int]:
    """Return the variables of a task of srun."""
    task, node = os.environ.get("SLURM_LOCALID", ""), os.environ.get("SLURM_NODEID", "")
    if not task.isdecimal() or not node.isdecimal():
        return {}
    tasks: list[int] = []
    for part in os.environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):  # such as 4(x2),3
        if found := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part):
            tasks += [int(found[1])] * int(found[2] or 1)
    size = {"LOCAL_WORLD_SIZE": tasks[int(node)]} if int(node) < len(tasks) else {}
    return {"LOCAL_RANK": int(task), "GROUP_RANK": int(node)} | size


def refuse_ray() -> None:
    """Raise UsageError in a worker of Ray Train that has no slot: it would train in a job of its own."""
    context = sys.modules.get("ray.train.v2._internal.execution.context")
    session = sys.modules.get("ray.train._internal.session")  # of the first version of Ray Train
    if getattr(context, "_train_context", None) is not None or getattr(session, "_session", None) is not None:
        raise UsageError(
            "this worker of Ray Train has no slot, so it would train in a job of its own; pass "
            "torch_config=perdure.ray.PerdureConfig(servers=2) to TorchTrainer"
        )


def explain() -> None:
    """Let an uncaught error of torch.distributed about MASTER_ADDR end this program as a usage error, with a line."""
    before = sys.excepthook
    if getattr(before, "__module__", "") == __name__:
        return  # the hook is installed already

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        of: BaseException | None = error
        for _ in range(_MAX_CAUSES):
            if of is None:
                return
            if "MASTER_ADDR" in str(of):
                print(
                    f"perdure: {_SAYS}, so MASTER_ADDR is not set; do not call init_process_group, and create an "
                    "Accelerator after `import perdure.accelerate`, and TrainingArguments after `import perdure.hf`",
                    file=sys.stderr,
                )
                end(_USAGE)
            of = of.__cause__ or of.__context__

    sys.excepthook = hook


def end(code: int) -> NoReturn:
    """End this process from a hook for uncaught errors. The interpreter's own end would have exit code 1."""
    atexit._run_exitfuncs()  # os._exit does not
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
