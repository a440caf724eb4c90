"""What a program keeps, as bytes: JSON, and behind it the values of tensors and arrays. Nothing in it is code."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError

_MAGIC = b"PERDURE1"
_HEAD = struct.Struct("<8sQ")


class Encoded:
    """A state that is checked, and not copied yet: nothing in it may change before it is written.

    A state is large where it has an optimizer's, so that each copy of it counts.
    """

    def __init__(self, state: Any) -> None:
        self._parts: list[NDArray[np.uint8]] = []
        self._end = 0
        tree = json.dumps(self._shrink(state, "state"), separators=(",", ":")).encode()
        head = np.frombuffer(_HEAD.pack(_MAGIC, len(tree)) + tree, np.uint8)
        self._parts.insert(0, head)
        self.size = len(head) + self._end

    def write(self, to: NDArray[np.uint8]) -> None:
        """Copy it to memory of its size."""
        at = 0
        for part in self._parts:
            to[at : at + part.size] = part
            at += part.size

    def _put(self, data: NDArray[np.uint8]) -> int:
        at = self._end
        self._parts.append(data)
        self._end += data.size
        return at

    def _shrink(self, value: Any, path: str) -> Any:
        match value:
            case None | bool() | int() | float() | str():
                return value
            case list():
                return [self._shrink(v, f"{path}[{i}]") for i, v in enumerate(value)]
            case tuple():
                return {"tuple": [self._shrink(v, f"{path}[{i}]") for i, v in enumerate(value)]}
            case dict():
                for key in value:
                    if not isinstance(key, (str, int)):
                        raise UsageError(f"{path} has the key {key!r}; only texts and whole numbers can be saved")
                return {"dict": [[k, self._shrink(v, f"{path}[{k!r}]")] for k, v in value.items()]}
            case bytes():
                return {"bytes": self._put(np.frombuffer(value, np.uint8)), "size": len(value)}
            case np.generic():
                return self._shrink(value.item(), path)
            case np.ndarray() if value.dtype.kind in "biuf":
                array, kind = value, "array"
            case _ if hasattr(value, "detach") and hasattr(value, "numpy"):  # a tensor
                array, kind = _of_tensor(value)
            case _:
                raise UsageError(
                    f"{path} is a {type(value).__name__}, which needs pickle, and that runs code: keep numbers, "
                    "texts, lists, dicts, arrays and tensors"
                )
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return {kind: self._put(data), "type": array.dtype.str, "shape": list(value.shape)}


def decode(data: bytes) -> Any:
    """Read what an ``Encoded`` has written. Tensors come back as arrays."""
    magic, size = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (b"", 0)
    if magic != _MAGIC or size > len(data) - _HEAD.size:
        raise UsageError("the slot's saved state is of another program: it was not saved by this class")
    start = _HEAD.size + size
    return _grow(json.loads(data[_HEAD.size : start]), memoryview(data)[start:])


def _of_tensor(tensor: Any) -> tuple[np.ndarray[Any, Any], str]:
    import torch

    tensor, kind = tensor.detach().cpu().contiguous(), "tensor"
    if tensor.dtype == torch.bfloat16:  # which numpy does not know
        tensor, kind = tensor.view(torch.int16), "bfloat16"
    return tensor.numpy(), kind


def _grow(value: Any, data: memoryview) -> Any:
    if isinstance(value, list):
        return [_grow(v, data) for v in value]
    if not isinstance(value, dict):
        return value
    if "dict" in value:
        return {k: _grow(v, data) for k, v in value["dict"]}
    if "tuple" in value:
        return tuple(_grow(v, data) for v in value["tuple"])
    if "bytes" in value:
        return bytes(data[value["bytes"] : value["bytes"] + value["size"]])
    kind = next(kind for kind in ("array", "tensor", "bfloat16") if kind in value)
    dtype, shape = np.dtype(value["type"]), value["shape"]
    count = int(np.prod(shape, dtype=np.int64))
    array = np.frombuffer(data, dtype, count, value[kind]).reshape(shape).copy()
    if kind == "array":
        return array
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if kind == "bfloat16" else tensor
