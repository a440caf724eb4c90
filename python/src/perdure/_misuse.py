"""What DataParallel refuses before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ._frozen import named_parameters
from ._late import is_loader
from .errors import UsageError
from .job import Share
from .torch import _refuse_stateless


def refuse_other_number(name: str, was: int, now: int) -> None:
    """Raise UsageError if a saved state has another number of objects than the program passes."""
    if was != now:
        raise UsageError(
            f"this slot saved the states of {was} objects in {name}, but the program now passes {now}: pass the same "
            "objects for the whole job"
        )


def trained_of(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[tuple[str, nn.Parameter]]:
    """Return the trained parameters. Each must be in an optimizer."""
    trained = [(n, p) for n, p in named_parameters(model) if p.requires_grad]
    known = {p for _, p in trained}
    held = {p for of in optimizers for group in of.param_groups for p in group["params"]}
    frozen = [n for n, p in named_parameters(model) if not p.requires_grad and p in held]
    if unknown := [p for p in held - known if p.requires_grad]:
        raise UsageError(f"the optimizer has {len(unknown)} parameters that are not in the model; remove them")
    if frozen:
        raise UsageError(
            f"the optimizer has frozen parameters ({', '.join(frozen[:3])}); pass only trained parameters to it"
        )
    if lacks := [n for n, p in trained if p not in held]:
        raise UsageError(f"no optimizer has {', '.join(lacks[:3])}; pass all trained parameters, or freeze these")
    if not trained:
        raise UsageError("the model has no trained parameters")
    return trained


def refuse_recovery(recovery: str) -> None:
    """Raise UsageError for strategies without checkpoints, and for those that lose updates without a rollback."""
    kind, _, options = recovery.partition(":")
    keeps = "checkpoint:" in options if kind == "chain" else kind in ("checkpoint", "resend")
    if not keeps or "partial" in options.split(","):
        why = "loses updates without a rollback" if keeps or kind == "scar" else "keeps no checkpoints"
        raise UsageError(
            f"recovery {recovery} {why}, but with DataParallel all slots must be able to return to a checkpoint: "
            "choose resend:auto, checkpoint:C or chain:N,checkpoint:C, or use ServerOptimizer or DiLoCo"
        )


def refuse_misplaced(shared: Sequence[Any], state: Sequence[Any]) -> None:
    """Raise UsageError for objects that cannot be saved, or belong into another argument."""
    _refuse_stateless([*shared, *state], "shared= or state=")
    for of in shared:
        if is_loader(of):
            raise UsageError(
                f"shared= contains a {type(of).__name__}, but each slot has its own position in the data; list it in "
                "state="
            )
        if isinstance(of, Optimizer):
            raise UsageError(f"shared= contains {type(of).__name__}; pass all optimizers as optimizer=[…]")


def refuse_empty_batches(sampler: Any, share: Share) -> None:
    """Raise UsageError if the last batch of this epoch or of later ones would have no sample for some slot."""
    whole, left = sampler._whole(share), sampler.length - sampler._place.position
    if whole < share.of:
        raise UsageError(
            f"a global batch of {whole} samples has none for some of {share.of} slots: choose a larger batch, or fewer "
            "slots"
        )
    last = next((of for of in (left % whole, sampler.length % whole) if 0 < of < share.of), 0)
    if last and not sampler._drop_last:
        raise UsageError(
            f"the last batch of an epoch has {last} samples for {share.of} slots, but each slot must make each step: "
            "choose drop_last=True, or another batch size"
        )
