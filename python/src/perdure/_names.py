"""Describes a model in the job, and writes the job's model to a file.

The description has the name, shape and type of each parameter and buffer, its names in the state_dict, and its place in
the job's tables. It is JSON in the rows of a table, which slot 0 writes in clock 0. docs/formats/models.md has its
fields.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ._frozen import plain_name
from .errors import UsageError
from .job import Floats, Job, Table
from .rules import Set

_DIM = 1024  # values per row
_HEAD = 4  # values before the text: its length and its CRC-32
_VERSION = 1
_MOST_NAMED = 5  # max names in an error message

#: Types of the safetensors format that all its readers have.
_TYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)


class Place(NamedTuple):
    """A tensor and its place in the job's tables."""

    name: str
    tensor: torch.Tensor
    kind: str  # trained, buffer or frozen
    table: str  # "" if no table has the values
    at: int = 0  # index of its first value in the table
    check: str = ""  # checksum of values that the job does not have


class Description:
    """The description of a model. All slots must have the same one.

    Args:
        job: The job.
        model: The model.
        places: All trained and frozen parameters and all buffers, except empty ones.
        settings: Other settings of the training that all slots must have in common.
    """

    def __init__(
        self, job: Job, model: nn.Module, places: Iterable[Place], settings: Mapping[str, Any] | None = None
    ) -> None:
        keys: dict[int, list[str]] = {}
        values: dict[str, Any] = {}
        for key, value in model.state_dict(keep_vars=True).items():
            values[plain_name(key)] = value
            keys.setdefault(id(value), []).append(plain_name(key))
        of = list(places)
        known = {id(p.tensor) for p in of}
        of += [
            Place(key, v, "buffer", "")
            for key, v in values.items()
            if id(v) not in known and isinstance(v, torch.Tensor) and not v.numel()
        ]
        self._tensors: list[dict[str, Any]] = [
            {
                "name": p.name,
                "keys": keys.pop(id(p.tensor), []),
                "kind": p.kind,
                "type": str(p.tensor.dtype).removeprefix("torch."),
                "shape": list(p.tensor.shape),
                "table": p.table,
                "at": p.at,
                "check": p.check,
            }
            for p in of
        ]
        self._others = [key for names in keys.values() for key in names]
        self._settings = dict(settings or {})
        self.table: Table = job.table("weights.names", dim=_DIM, rule=Set())

    def put(self) -> None:
        """Write the description."""
        document = {
            "version": _VERSION,
            "tensors": self._tensors,
            "others": self._others,
            "settings": self._settings,
        }
        text = json.dumps(document, separators=(",", ":")).encode()
        head = len(text).to_bytes(4, "little") + zlib.crc32(text).to_bytes(4, "little")
        rows = -(-(_HEAD + -(-len(text) // 2)) // _DIM)
        values = np.frombuffer((head + text).ljust(2 * _DIM * rows, b"\0"), "<u2").astype(np.float32)
        self.table.inc(np.arange(rows), values.reshape(rows, _DIM))

    def _get(self) -> dict[str, Any] | None:
        """Return the job's description, or None if rows are missing, as after the loss of updates."""
        first = _bytes(self.table.get([0]))
        size = int.from_bytes(first[:4], "little")
        text = (
            _bytes(self.table.get(np.arange(-(-(2 * _HEAD + size) // (2 * _DIM)))))[2 * _HEAD :][:size] if size else b""
        )
        if not size or zlib.crc32(text) != int.from_bytes(first[4:8], "little"):
            return None
        document: dict[str, Any] = json.loads(text)
        return document

    def check(self) -> None:
        """Raise UsageError, naming the first difference, if another slot has written a different description."""
        document = self._get()
        if document is None:
            return
        self._check_settings(document.get("settings", {}))
        theirs: list[dict[str, Any]] = document["tensors"]
        if theirs == self._tensors:
            return
        what = self._difference(theirs)
        if what:
            raise UsageError(
                f"the model of the slot that started this job {what}; all slots must use the same model for the whole "
                "job"
            )
        for there, here in zip(theirs, self._tensors, strict=True):
            if there["check"] != here["check"]:
                raise UsageError(
                    f"the frozen parameter {here['name']} has the checksum {here['check']}, but {there['check']} in "
                    "the process that started the job; all processes must freeze the same values: load them from the "
                    "same file, or call torch.manual_seed before creating the model"
                )

    def _check_settings(self, theirs: Mapping[str, Any]) -> None:
        if theirs != self._settings:
            here, there = (
                ", ".join(f"{name}={value}" for name, value in of.items()) or "the default settings"
                for of in (self._settings, theirs)
            )
            raise UsageError(
                f"the training has {here} here, but {there} in the slot that started this job; all slots must use the "
                "same settings for the whole job"
            )

    def _difference(self, theirs: Sequence[Mapping[str, Any]]) -> str:
        for there, here in zip(theirs, self._tensors, strict=False):
            if any(there[field] != here[field] for field in ("name", "kind", "type", "shape")):
                return f"has a different name, shape or type for {_text(here)}: {_text(there)}"
            if there["keys"] != here["keys"]:
                has, lacks = (", ".join(of["keys"]) or "no name" for of in (there, here))
                return f"has {here['name']} in its state_dict as {has}, and this one as {lacks}"
            if (there["table"], there["at"]) != (here["table"], here["at"]):
                return f"has {here['name']} in another group of parameters"
        if len(theirs) > len(self._tensors):
            more = _text(theirs[len(self._tensors)])
            return f"has more parameters and buffers than this one, which has {len(self._tensors)}: {more}"
        return f"has no {_text(self._tensors[len(theirs)])}" if len(theirs) < len(self._tensors) else ""

    def export(
        self, path: str | os.PathLike[str], values: Mapping[str, torch.Tensor | None], partial: bool, version: str
    ) -> None:
        """Write the tensors of the state_dict to a file, completely or not at all.

        Args:
            path: The file.
            values: The values of tensors by name; None if they are unknown.
            partial: Whether to omit tensors without values.
            version: The version of Perdure.
        """
        tensors: dict[str, torch.Tensor] = {}
        missing = list(self._others)
        for of in self._tensors:
            value = values.get(of["name"])
            if value is None and 0 in of["shape"]:
                value = torch.empty(of["shape"], dtype=getattr(torch, of["type"]))
            if value is None or value.dtype not in _TYPES:
                missing += of["keys"]
                continue
            for key in of["keys"]:
                tensors[key] = value.detach().cpu().contiguous().clone()  # safetensors rejects shared memory
        if missing and not partial:
            named = ", ".join(missing[:_MOST_NAMED]) + (
                f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
            )
            raise UsageError(
                f"export cannot write {named}, since the job does not have these values or safetensors does not have "
                "their type; pass partial=True to omit them, or save model.state_dict() with torch.save"
            )
        _write(Path(path), tensors, {"format": "pt", "perdure": version})


def _write(path: Path, tensors: dict[str, torch.Tensor], about: dict[str, str]) -> None:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError:
        raise UsageError(
            "export needs the package safetensors: install it; or export the run without it, by "
            "`perdure export RUN -o FILE`"
        ) from None
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        save_file(tensors, part, about)
        with part.open("rb") as of:
            os.fsync(of.fileno())
        part.replace(path)
    except (OSError, SafetensorError) as error:
        raise OSError(f"cannot write {path}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()  # after success it does not exist any more
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def decoded(values: Floats, tensors: Sequence[torch.Tensor], starts: Sequence[int]) -> Iterator[torch.Tensor]:
    """Yield copies of tensors like the given ones, whose bytes are in values, two in each value."""
    flat = values.reshape(-1)
    for like, start, end in zip(tensors, starts, starts[1:], strict=False):
        data = flat[start:end].astype(np.uint16).view(np.uint8)[: like.numel() * like.element_size()]
        yield torch.from_numpy(data.copy()).view(like.dtype).reshape(like.shape)


def _bytes(values: Floats) -> bytes:
    return values.reshape(-1).astype("<u2").tobytes()


def _text(of: Mapping[str, Any]) -> str:
    frozen = "the frozen " if of["kind"] == "frozen" else ""
    return f"{frozen}{of['name']} of type {of['type']} and shape {of['shape']}"
