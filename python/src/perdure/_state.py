"""What a program keeps, as bytes: JSON, and behind it the values of tensors and arrays. Nothing in it is code."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from .errors import UsageError

_MAGIC = b"PERDURE1"
_HEAD = struct.Struct("<8sQ")


def encode(state: Any) -> bytes:
    """Write nested dicts, lists, tuples, numbers, texts, bytes, arrays and tensors."""
    parts = bytearray()
    tree = json.dumps(_shrink(state, "state", parts), separators=(",", ":")).encode()
    return b"".join([_HEAD.pack(_MAGIC, len(tree)), tree, parts])


def decode(data: bytes) -> Any:
    """Read what ``encode`` has written. Tensors come back as arrays."""
    magic, size = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (b"", 0)
    if magic != _MAGIC or size > len(data) - _HEAD.size:
        raise UsageError("the slot's saved state is of another program: it was not saved by this class")
    start = _HEAD.size + size
    return _grow(json.loads(data[_HEAD.size : start]), memoryview(data)[start:])


def _shrink(value: Any, path: str, parts: bytearray) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [_shrink(v, f"{path}[{i}]", parts) for i, v in enumerate(value)]
        case tuple():
            return {"tuple": [_shrink(v, f"{path}[{i}]", parts) for i, v in enumerate(value)]}
        case dict():
            for key in value:
                if not isinstance(key, (str, int)):
                    raise UsageError(f"{path} has the key {key!r}; only texts and whole numbers can be saved")
            pairs = [[k, _shrink(v, f"{path}[{k!r}]", parts)] for k, v in value.items()]
            return {"dict": pairs}
        case bytes():
            return {"bytes": _put(value, parts), "size": len(value)}
        case np.generic():
            return _shrink(value.item(), path, parts)
        case np.ndarray() if value.dtype.kind in "biuf":
            array, kind = np.ascontiguousarray(value), "array"
        case _ if hasattr(value, "detach") and hasattr(value, "numpy"):  # a tensor
            array, kind = _of_tensor(value)
        case _:
            raise UsageError(
                f"{path} is a {type(value).__name__}, which needs pickle, and that runs code: keep numbers, texts, "
                "lists, dicts, arrays and tensors"
            )
    return {kind: _put(array.tobytes(), parts), "type": array.dtype.str, "shape": list(value.shape)}


def _of_tensor(tensor: Any) -> tuple[np.ndarray[Any, Any], str]:
    import torch

    tensor, kind = tensor.detach().cpu().contiguous(), "tensor"
    if tensor.dtype == torch.bfloat16:  # which numpy does not know
        tensor, kind = tensor.view(torch.int16), "bfloat16"
    return tensor.numpy(), kind


def _put(data: bytes, parts: bytearray) -> int:
    at = len(parts)
    parts += data
    return at


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
