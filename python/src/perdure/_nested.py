"""A slot is one process. Launchers inside of launchers are refused with a line that says so."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from .errors import UsageError

#: What libraries take for a distributed training of their own.
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")

_SAYS = "a slot of a job is one process, which is no member of a process group"
_MAX_CAUSES = 10


def refuse() -> None:
    """Refuse a slot whose process is one of several that torchrun has started."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError(
            f"TORCHELASTIC_RUN_ID is set, by torchrun or accelerate launch: {_SAYS}; start the program by "
            "`perdure launch --nproc N`, without torchrun"
        )


def show_ranks(slot: int, slots: int) -> list[str]:
    """Set the variables of ``perdure launch`` in a process that a host has started, and return the new names."""
    ours = {"RANK": slot, "ROLE_RANK": slot, "WORLD_SIZE": slots, "ROLE_WORLD_SIZE": slots, "PERDURE_SLOT": slot}
    if "perdure.hf" in sys.modules:  # which has removed them, since Hugging Face's trainer would form a group
        ours = {"PERDURE_SLOT": slot}
    new = [name for name in ours if name not in os.environ]
    os.environ.update({name: str(ours[name]) for name in new})
    explain()
    return new


def explain() -> None:
    """Have an uncaught error of torch.distributed followed by a line that says what to do."""
    before = sys.excepthook
    if getattr(before, "__module__", "") == __name__:
        return  # it does so already

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        of: BaseException | None = error
        for _ in range(_MAX_CAUSES):
            if of is None:
                return
            if "MASTER_ADDR" in str(of):
                print(
                    f"perdure: {_SAYS}, so MASTER_ADDR is not set; leave init_process_group out, and make an "
                    "Accelerator or TrainingArguments after `import perdure.hf`",
                    file=sys.stderr,
                )
                return
            of = of.__cause__ or of.__context__

    sys.excepthook = hook
