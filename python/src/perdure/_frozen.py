"""Frozen parameters of a model. All processes must have the same values, and must not change them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ._late import is_loader
from .errors import UsageError

#: Up to this many bytes in all, slot 0 hands its frozen parameters to all. Of more, checksums are compared.
HANDED = 64 << 20

#: The end of the message about a parameter that is unfrozen while a training runs.
NOT_TRAINED = (
    "was frozen when the training began and requires a gradient now: the servers do not have it, so each process would "
    "train its own; call requires_grad_(True) before DataParallel or DiLoCo is made"
)

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # what torch.compile and checkpointing add to names


class Frozen:
    """The frozen parameters of a model."""

    def __init__(self, model: nn.Module) -> None:
        self._named = [(n, p) for n, p in named_parameters(model) if not p.requires_grad and p.numel()]
        self._versions: list[int | None] = []  # None: its changes are kept with the state
        self._checks: list[str] = []  # of the values that they must keep
        size = sum(p.numel() * p.element_size() for _, p in self._named)
        plain = all(type(p) is nn.Parameter for _, p in self._named)  # others are more than their values
        self.handed = [p for _, p in self._named] if plain and size <= HANDED else []

    def compared(self) -> list[tuple[str, torch.Tensor, str]]:
        """Return names, parameters, and checksums of their values unless they are handed out. All slots must agree."""
        self._checks = [] if self.handed else [self._checksum(n, p) for n, p in self._named]
        return [(n, p, self._checks[i] if self._checks else "") for i, (n, p) in enumerate(self._named)]

    def _checksum(self, name: str, p: nn.Parameter) -> str:
        try:
            return f"{checksum(p):08x}"
        except (NotImplementedError, RuntimeError, TypeError) as error:
            raise UsageError(
                f"the frozen parameter {name} is a {type(p).__name__} on {p.device}, whose values cannot be compared "
                f"between processes ({str(error).splitlines()[0]})"
            ) from None

    def begin(self) -> None:
        """Note the present values as those that the parameters must keep."""
        self._versions = [_version(p) for _, p in self._named]
        self._checks = self._checks or [self._checksum(n, p) for n, p in self._named]

    def check(self, state: Sequence[Any]) -> None:
        """Raise UsageError where one is trained, or was changed and is in no state. state: what ``state=`` lists."""
        for i, (name, p) in enumerate(self._named):
            if p.requires_grad:
                raise UsageError(f"{name} {NOT_TRAINED}")
            if self._versions[i] not in (None, now := _version(p)):
                if self._checksum(name, p) == self._checks[i]:  # an evaluation has put averages there, and these back
                    self._versions[i] = now
                    continue
                kept = (of for of in state if not isinstance(of, Optimizer) and not is_loader(of))
                if not any(_storage(p) == _storage(t) for of in kept for t in _tensors(of.state_dict())):
                    raise UsageError(
                        f"{name} is frozen, and the program has changed it: a process that takes this slot over would "
                        "not have the change; make it a buffer (register_buffer), or list what changes it in state="
                    )
                self._versions[i] = None


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of a model by their names, which are the same whether it is compiled or not."""
    return ((plain_name(name), p) for name, p in model.named_parameters())


def plain_name(name: str) -> str:
    """A parameter's or buffer's name without what wrappers add."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def checksum(tensor: torch.Tensor) -> int:
    """A CRC-32 of a tensor's values, or of those that a tensor of a class of its own is made of."""
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
    """Refuse a model some of whose parameters or buffers have no values yet."""
    for name, of in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(of):
            raise UsageError(
                f"{plain_name(name)} is of one of torch's lazy modules, and has no shape yet: run the model on a batch "
                "before DataParallel or DiLoCo is made"
            )
        if of.is_meta:
            raise UsageError(
                f"{plain_name(name)} is on the meta device, and has no values: load them, for example by "
                "to_empty and load_state_dict, before DataParallel or DiLoCo is made"
            )


def refuse_island(model: nn.Module) -> None:
    """Refuse a learner of several processes: each process is a slot by itself."""
    for name, p in model.named_parameters():
        if hasattr(p, "placements") and hasattr(p, "device_mesh"):
            raise UsageError(
                f"{name} is a DTensor, and this process has a part of it: a slot is one process with the whole model; "
                "leave fully_shard and parallelize_module out"
            )
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise UsageError(
            f"this process is one of {distributed.get_world_size()} of a torch.distributed group, and a slot is one "
            "process: leave init_process_group and torchrun out, and start one process for each GPU by perdure launch"
        )


def _version(p: torch.Tensor) -> int:
    return 0 if p.is_inference() else p._version


def _storage(t: torch.Tensor) -> int:
    try:
        return int(t.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError):  # a class of tensors that has none
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
