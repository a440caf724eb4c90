from __future__ import annotations

import enum
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple

import numpy as np
import pytest

import perdure
from perdure import _state


def written(state: object) -> bytes:
    encoded = _state.Encoded(state)
    to = np.empty(encoded.size, np.uint8)
    encoded.write(to)
    return to.tobytes()


def test_both_ways() -> None:
    state = {"a": [1, 2.5, None, True, "x", b"y", (1, (2,))], 3: {"n": np.arange(6.0).reshape(2, 3)}, "e": np.zeros(0)}
    again = _state.decode(written(state))
    assert again["a"] == state["a"]
    assert (again[3]["n"] == state[3]["n"]).all()  # type: ignore[index]
    assert again["e"].shape == (0,)
    assert again.keys() == state.keys()


def test_nothing_but_empty() -> None:
    for empty in ({"e": np.zeros(0)}, {"b": b""}):
        again = _state.decode(written(empty))
        assert again.keys() == empty.keys()
        assert len(next(iter(again.values()))) == 0


def test_types_stay() -> None:
    """Values that compare equal to plain ones keep their own types."""
    state = {"milestones": Counter([3, 3, 5]), "loss": np.float32(0.1), "n": np.int64(3), "o": OrderedDict(a=1)}
    again = _state.decode(written(state))
    assert again == state
    for name in ("milestones", "loss", "n"):
        assert type(again[name]) is type(state[name])


class Way(enum.IntEnum):
    UP = 1


Pair = namedtuple("Pair", "a b")


def test_mistakes() -> None:
    for state, said in (
        ({"f": print}, r"state\['f'\] is a builtin"),
        ({(1,): 2}, "key"),
        ({Way.UP: 2}, "key"),
        ([{1, 2}], r"state\[0\] is a set"),
        ({"a": [Way.UP]}, r"state\['a'\]\[0\] is a Way, which would be restored as another type"),
        ({"a": Pair(1, 2)}, r"state\['a'\] is a Pair, which would be restored as a tuple"),
        ({"a": defaultdict(int)}, r"state\['a'\] is a defaultdict, which would be restored as another type"),
        ({"a": deque([1])}, r"state\['a'\] is a deque"),
    ):
        with pytest.raises(perdure.UsageError, match=said):
            _state.Encoded(state)
    for data in (b"", b"PERDURE2", b"other state", written({})[:-1]):
        with pytest.raises(perdure.UsageError, match="another program"):
            _state.decode(data)
    for version in (b"1", b"3"):
        with pytest.raises(perdure.UsageError, match="reads format 2"):
            _state.decode(b"PERDURE" + version + written({})[8:])
