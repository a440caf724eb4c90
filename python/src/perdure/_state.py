"""Encodes program state as JSON followed by the values of tensors and arrays. Decoding executes no code."""

from __future__ import annotations

import bisect
import enum
import itertools
import json
import math
import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError

_SMALL = 1 << 16  # values of at most this size are copied: a loader's threads may change them
_ALIGN = 64  # values start at multiples of this, so that decoded tensors may refer to the encoded state
_MAGIC = b"PERDURE2"  # the last byte is the version of the format
_HEAD = struct.Struct("<8sQ")


class Encoded:
    """A state that is checked, and copied only where it is small: it must not change before the last ``read``.

    States that include an optimizer's are large, so each copy is expensive. Values on another device are copied to
    this process's memory piece by piece.
    """

    _tree_only = False  # whether to skip the values of tensors

    def __init__(self, state: Any, path: str = "state", late: NDArray[Any] | None = None) -> None:
        self._parts: list[Any] = []  # bytes of the values: numpy arrays, or tensors on another device
        self._late = 0 if late is None else late.ctypes.data  # not copied: it changes until the first read
        self._end = 0
        tree = json.dumps(self._shrink(state, path), separators=(",", ":")).encode()
        tree += b" " * (-(_HEAD.size + len(tree)) % _ALIGN)
        head = np.frombuffer(_HEAD.pack(_MAGIC, len(tree)) + tree, np.uint8)
        self._parts.insert(0, head)
        self._starts = [0, *itertools.accumulate(len(part) for part in self._parts)]
        self.size = len(head) + self._end

    def write(self, to: NDArray[np.uint8]) -> None:
        """Copy the encoded state to memory of ``size`` bytes."""
        self.read(0, to)

    def read(self, at: int, to: NDArray[np.uint8]) -> int:
        """Copy the part of the encoded state that starts at position at, as much of it as fits.

        Returns:
            The number of bytes.
        """
        end = min(at + to.size, self.size)
        i = bisect.bisect_right(self._starts, at) - 1
        done = at
        while done < end:
            first = done - self._starts[i]
            piece = self._parts[i][first : first + end - done]
            if not isinstance(piece, np.ndarray):
                piece = piece.cpu().numpy()
            to[done - at : done - at + len(piece)] = piece
            done += len(piece)
            i += 1
        return end - at

    def capture(self, states: Any) -> None:
        """Copy the tensors and arrays of a part of the state, so that they may change before the last ``read``."""
        change = set(_addresses(states))
        for i, part in enumerate(self._parts):
            if isinstance(part, np.ndarray):
                if part.ctypes.data in change:
                    self._parts[i] = part.copy()
            elif part.data_ptr() in change:
                self._parts[i] = part.cpu().numpy()

    def checksum(self) -> int:
        """Return a checksum of the encoded state."""
        check, at, room = 0, 0, np.empty(min(self.size, 1 << 20), np.uint8)
        while at < self.size:
            count = self.read(at, room)
            check = zlib.crc32(room[:count].data, check)
            at += count
        return check

    def _put(self, data: Any) -> int:
        at = self._end
        small = isinstance(data, np.ndarray) and data.size <= _SMALL and data.ctypes.data != self._late
        self._parts.append(data.copy() if small else data)
        self._end += len(data)
        if gap := -self._end % _ALIGN:
            self._parts.append(np.zeros(gap, np.uint8))
            self._end += gap
        return at

    def _shrink(self, value: Any, path: str) -> Any:
        match value:
            case enum.Enum() | defaultdict():  # subclasses of int, str or dict would be restored as their base type
                raise UsageError(f"{path} is {_a(value)}, which would be restored as another type: {_KEEP}")
            case tuple() if hasattr(value, "_fields"):
                raise UsageError(f"{path} is {_a(value)}, which would be restored as a tuple: {_KEEP}")
            case np.generic() if value.dtype.kind in "biuf":
                return self._array(np.asarray(value), "scalar")
            case None | bool() | int() | float() | str():
                return value
            case list():
                return [self._shrink(v, f"{path}[{i}]") for i, v in enumerate(value)]
            case tuple():
                return {"tuple": [self._shrink(v, f"{path}[{i}]") for i, v in enumerate(value)]}
            case dict():
                for key in value:
                    if not isinstance(key, (str, int)) or isinstance(key, enum.Enum):
                        raise UsageError(f"{path} has the key {key!r}; use only strings and integers as keys")
                kind = "counter" if isinstance(value, Counter) else "dict"
                return {kind: [[k, self._shrink(v, f"{path}[{k!r}]")] for k, v in value.items()]}
            case bytes():
                return {"bytes": self._put(np.frombuffer(value, np.uint8)), "size": len(value)}
            case Later():
                return {"bytes": self._put(value), "size": len(value)}
            case np.ndarray() if value.dtype.kind in "biuf":
                return self._array(value, "array")
            case _ if hasattr(value, "detach") and hasattr(value, "numpy"):
                return self._tensor(value, path)
            case _:
                raise UsageError(
                    f"{path} is {_a(value)}, which needs pickle, and loading pickle runs code: {_KEEP}, arrays and "
                    "tensors"
                )

    def _array(self, array: NDArray[Any], kind: str) -> Any:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return {kind: self._put(data), "type": array.dtype.str, "shape": list(array.shape)}

    def _tensor(self, tensor: Any, path: str) -> Any:
        """Encode a tensor as the bytes of its values, so that every type is restored bit by bit."""
        import torch

        if hasattr(tensor, "to_local"):
            return {"shard": self._tensor(tensor.detach().to_local(), path)}
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise UsageError(f"{path} is {_a(tensor)}, a tensor subclass, which cannot be saved: use plain tensors")
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            how = "meta" if tensor.is_meta else "quantized" if tensor.is_quantized else "sparse"
            raise UsageError(f"{path} is a {how} tensor, which cannot be saved: use a dense one")
        place = {"tensor": self._end, "type": str(tensor.dtype), "shape": list(tensor.shape)}
        if not self._tree_only:
            plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
            self._put(plain.numpy() if plain.is_cpu else plain)
        return place


class Later:
    """Bytes of a state that another process has. They are read piece by piece.

    Args:
        size: The number of bytes.
        read: Returns the bytes between two positions.
    """

    def __init__(self, size: int, read: Callable[[int, int], NDArray[np.uint8]]) -> None:
        self._size, self._read = size, read

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, of: slice) -> NDArray[np.uint8]:
        start, end, _ = of.indices(self._size)
        return self._read(start, end)


class Shard(NamedTuple):
    """The local part of a DTensor in a decoded state."""

    local: Any


class Checked(Encoded):
    """Checks that a state can be saved, without copying it. Raises UsageError with the path of the first problem."""

    _tree_only = True


_KEEP = "save only numbers, strings, lists, dicts"


def _addresses(state: Any) -> Iterator[int]:
    """Yield the addresses of the tensors and arrays in a state."""
    if isinstance(state, dict):
        for of in state.values():
            yield from _addresses(of)
    elif isinstance(state, (list, tuple)):
        for of in state:
            yield from _addresses(of)
    elif isinstance(state, np.ndarray):
        yield state.ctypes.data
    elif hasattr(state, "data_ptr"):
        yield state.data_ptr()


def _a(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def decode(data: bytes | memoryview, views: bool = False) -> Any:
    """Decode a state written by ``Encoded``.

    Args:
        data: The encoded state.
        views: Whether tensors refer to the encoded state instead of copies of their values.
    """
    magic, size = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (b"", 0)
    if magic[:-1] != _MAGIC[:-1] or size > len(data) - _HEAD.size:
        raise UsageError("the slot's saved state was written by another program; start a new job for this program")
    if magic != _MAGIC:
        was, reads = magic[-1:].decode(errors="replace"), _MAGIC[-1:].decode()
        raise UsageError(
            f"the slot's saved state has format {was}, but this version of perdure reads format {reads}; install the "
            "version that wrote it"
        )
    start = _HEAD.size + size
    return _grow(json.loads(bytes(data[_HEAD.size : start])), memoryview(data)[start:], views)


def _grow(value: Any, data: memoryview, views: bool) -> Any:
    if isinstance(value, list):
        return [_grow(v, data, views) for v in value]
    if not isinstance(value, dict):
        return value
    if "dict" in value:
        return {k: _grow(v, data, views) for k, v in value["dict"]}
    if "counter" in value:
        return Counter({k: _grow(v, data, views) for k, v in value["counter"]})
    if "tuple" in value:
        return tuple(_grow(v, data, views) for v in value["tuple"])
    if "bytes" in value:
        return bytes(data[value["bytes"] : value["bytes"] + value["size"]])
    if "shard" in value:
        return Shard(_grow(value["shard"], data, views))
    if "tensor" in value:
        return _grown_tensor(value, data, views)
    kind = "array" if "array" in value else "scalar"
    dtype, shape = np.dtype(value["type"]), value["shape"]
    count = int(np.prod(shape, dtype=np.int64))
    array = np.frombuffer(data, dtype, count, value[kind]).reshape(shape).copy()
    return array[()] if kind == "scalar" else array


def _grown_tensor(value: dict[str, Any], data: memoryview, views: bool) -> Any:
    import torch

    dtype: torch.dtype = getattr(torch, value["type"].removeprefix("torch."))
    count = math.prod(value["shape"])
    if views and count:
        return torch.frombuffer(data, dtype=dtype, count=count, offset=value["tensor"]).view(value["shape"])
    tensor = torch.empty(value["shape"], dtype=dtype)
    size = tensor.numel() * tensor.element_size()
    if size:
        tensor.view(-1).view(torch.uint8).numpy()[:] = np.frombuffer(data, np.uint8, size, value["tensor"])
    return tensor
