from __future__ import annotations

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


def test_mistakes() -> None:
    for state, said in (
        ({"f": print}, r"state\['f'\] is a builtin"),
        ({(1,): 2}, "key"),
        ([{1, 2}], r"state\[0\] is a set"),
    ):
        with pytest.raises(perdure.UsageError, match=said):
            _state.Encoded(state)
    for data in (b"", b"PERDURE1", b"other state", written({})[:-1]):
        with pytest.raises(perdure.UsageError, match="of another program"):
            _state.decode(data)
