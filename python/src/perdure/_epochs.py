"""The count of epochs in a job without a Sampler."""

from __future__ import annotations

from typing import Any


class Epochs:
    """Counts the epochs of ``Job.epochs``. ServerOptimizer and DiLoCo save the count with each update."""

    def __init__(self) -> None:
        self.epoch = 0
        self.count = 1  # of the program's loop
        self.used = False  # whether the program loops over Job.epochs

    def _finish_epoch(self, epoch: int) -> bool:
        self.epoch = epoch + 1
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
