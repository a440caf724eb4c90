"""Checks a model's frozen parameters. All processes must have the same values, and must not change them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ._late import is_loader
from ._local import is_sharded, local, whole
from .errors import UsageError
from .job import Job

#: Slot 0 distributes its frozen parameters if they take at most this many bytes. Otherwise checksums are compared.
HANDED = 64 << 20

#: The end of the message about a parameter that is unfrozen during training.
NOT_TRAINED = (
    "was frozen when training started but requires a gradient now: the servers do not have it, so each process would "
    "train its own copy; call requires_grad_(True) before creating DataParallel, ServerOptimizer or DiLoCo"
)

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # what torch.compile and checkpointing add to names


class Frozen:
    """The frozen parameters of a model."""

    def __init__(self, model: nn.Module) -> None:
        self._named = [(n, p) for n, p in named_parameters(model) if not p.requires_grad and p.numel()]
        self._versions: list[int | None] = []  # None: an object in state saves the parameter's changes
        self._checks: list[str] = []  # checksums of the initial values
        size = sum(p.numel() * p.element_size() for _, p in self._named)
        plain = all(type(p) is nn.Parameter for _, p in self._named)  # subclasses have more than values
        self.handed = [p for _, p in self._named] if plain and size <= HANDED else []

    def compared(self) -> list[tuple[str, torch.Tensor, str]]:
        """Return names, parameters, and checksums, which are empty for distributed values. All slots must agree."""
        checks = [] if self.handed else [self._checksum(n, whole(p)) for n, p in self._named]
        if not any(is_sharded(p) for _, p in self._named):  # the checks during training concern the local parts only
            self._checks = checks
        return [(n, p, checks[i] if checks else "") for i, (n, p) in enumerate(self._named)]

    def _checksum(self, name: str, p: torch.Tensor) -> str:
        try:
            return f"{checksum(p):08x}"
        except (NotImplementedError, RuntimeError, TypeError) as error:
            raise UsageError(
                f"cannot compare the frozen parameter {name}, a {type(p).__name__} on {p.device}, between processes "
                f"({str(error).splitlines()[0]}); use a plain tensor"
            ) from None

    def begin(self) -> None:
        """Record the current values, which the parameters must keep."""
        self._versions = [_version(p) for _, p in self._named]
        self._checks = self._checks or [self._checksum(n, p) for n, p in self._named]

    def check(self, state: Sequence[Any]) -> None:
        """Raise UsageError if a parameter requires a gradient, or was changed and no object in ``state`` saves it."""
        for i, (name, p) in enumerate(self._named):
            if p.requires_grad:
                raise UsageError(f"{name} {NOT_TRAINED}")
            if self._versions[i] not in (None, now := _version(p)):
                if self._checksum(name, p) == self._checks[i]:  # an evaluation changed the values and restored them
                    self._versions[i] = now
                    continue
                kept = (of for of in state if not isinstance(of, Optimizer) and not is_loader(of))
                if not any(_storage(p) == _storage(t) for of in kept for t in _tensors(of.state_dict())):
                    raise UsageError(
                        f"{name} is frozen, but the program has changed it: a replacement process of this slot would "
                        "not have the change; make it a buffer (register_buffer), or list the object that changes it "
                        "in state="
                    )
                self._versions[i] = None

    def values(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        """Yield names and values, or None for parameters that the program has changed or that consist of more."""
        for (name, p), version in zip(self._named, self._versions, strict=True):
            yield name, None if version is None or type(p) is not nn.Parameter else p


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Return the parameters of a model with names that do not depend on whether it is compiled."""
    return ((plain_name(name), p) for name, p in model.named_parameters())


def plain_name(name: str) -> str:
    """Return a parameter's or buffer's name without the prefixes that wrappers add."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def checksum(tensor: torch.Tensor) -> int:
    """Return a CRC-32 of a tensor's values, or of the local part of a DTensor.

    For another tensor subclass it covers the tensors inside.
    """
    tensor = local(tensor) if is_sharded(tensor) else tensor
    if hasattr(tensor, "__tensor_flatten__"):
        of = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    else:
        of = [tensor.detach().as_subclass(torch.Tensor)]
    check = 0
    for part in of:
        if hasattr(part, "__tensor_flatten__"):
            check ^= checksum(part)
            continue
        values = part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        check = zlib.crc32(values.data, check)
    return check


def refuse_without_values(model: nn.Module) -> None:
    """Raise UsageError if any parameter or buffer of the model has no values yet."""
    for name, of in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(of):
            raise UsageError(
                f"{plain_name(name)} belongs to a lazy module of torch and has no shape yet: run the model on a batch "
                "before creating DataParallel, ServerOptimizer or DiLoCo"
            )
        if of.is_meta:
            raise UsageError(
                f"{plain_name(name)} is on the meta device and has no values: load them, for example with to_empty and "
                "load_state_dict, before creating DataParallel, ServerOptimizer or DiLoCo"
            )


def refuse_group(model: nn.Module, job: Job, what: str) -> None:
    """Raise UsageError for a model that is spread over several processes. what: the class that trains it."""
    if job._island is not None:
        raise UsageError(
            f"{what} does not work in an island of several ranks; use DiLoCo or DataParallel, or start one process per "
            "slot: omit --nproc-per-learner and torchrun"
        )
    for name, p in model.named_parameters():
        if is_sharded(p) and not (what == "DataParallel" and p.device_mesh.size() == 1):
            raise UsageError(
                f"{name} is a DTensor, and this process has only a part of it, but this slot is one process: use "
                "DiLoCo or DataParallel and start the slot's ranks with perdure launch --nproc-per-learner, or omit "
                "fully_shard and parallelize_module"
            )
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise UsageError(
            f"this process is one of {distributed.get_world_size()} in a torch.distributed group, but this slot is one "
            "process: use DiLoCo or DataParallel and start the slot's ranks with perdure launch --nproc-per-learner, "
            "or omit init_process_group"
        )


def _version(p: torch.Tensor) -> int:
    return 0 if p.is_inference() else p._version


def _storage(t: torch.Tensor) -> int:
    try:
        return int(t.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError):  # some tensor subclasses have no storage
        return id(t)


def _tensors(state: Any) -> Iterable[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for of in state.values():
            yield from _tensors(of)
    elif isinstance(state, (list, tuple)):
        for of in state:
            yield from _tensors(of)
