"""Outer steps whose changes, or averaged weights, are rounded before they are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_overlap import TAU, H, Training

import perdure

torch = pytest.importorskip("torch")


def as_sent(t: Training, changes: list[Any]) -> np.ndarray[Any, Any]:
    """Return changes as the rows of the table, not rounded."""
    g = t.diloco._groups[0]
    rows = np.zeros((g.rows.rows, 1024), np.float32)
    for (_, place), change in zip(g.rows.views(rows), changes, strict=True):
        place.copy_(change)
    return rows


@pytest.mark.parametrize("overlap", [0, TAU])
@pytest.mark.parametrize(
    ("compress", "down"), [("bf16", None), ("int8", "bf16"), ("2bit", None), ("2bit", "int8"), (None, "bf16")]
)
def test_as_computed_by_hand(job: perdure.Job, overlap: int, compress: str | None, down: str | None) -> None:
    # Before the training, which ends a clock.
    down_table = job.table("down", 8, dim=1024, rule=perdure.Add(), **({"encoding": down} if down else {}))
    t = Training(job, width=70, overlap=overlap, compress=compress, compress_weights=down)
    g = t.diloco._groups[0]
    first = [w.clone() for w in t.weights()]
    added, residual = as_sent(t, [torch.zeros_like(w) for w in first]), 0.0
    base = first
    for step in range(1, 3 * H + overlap + 1):
        before = t.weights()
        t.step()
        if step % H == 0:
            sent = [w.add(p.grad, alpha=-0.05) for w, p in zip(before, t.model.parameters(), strict=True)]
            if overlap and step == H:
                assert all(map(torch.equal, sent, t.weights()))
            change = as_sent(t, [b - s for b, s in zip(base, sent, strict=True)]) + residual
            rounded = change.copy()
            g.table._round(rounded)
            if compress == "2bit":
                residual = change - rounded
                assert np.abs(residual).max() > 0
            added = added - rounded
            shown = added.copy()
            down_table._round(shown)
            base = [w + v for w, (_, v) in zip(first, g.rows.views(shown), strict=True)]
        if step >= H and step % H == overlap:
            now = t.weights()
            if overlap:
                local = [w.add(p.grad, alpha=-0.05) for w, p in zip(before, t.model.parameters(), strict=True)]
                want = [(w - s) + b for w, s, b in zip(local, sent, base, strict=True)]
            else:
                want = base
            assert all(map(torch.equal, now, want)), step
    path = job.run_folder / "model.safetensors"
    exact = [w + v for w, (_, v) in zip(first, g.rows.views(added), strict=True)]
    t.diloco.export(path)
    from safetensors.torch import load_file

    exported = load_file(path)
    for (name, _), want in zip(t.model.named_parameters(), exact, strict=True):
        assert torch.equal(exported[name], want)
    if t.diloco._steps == 0:
        t.diloco.finish()
        assert all(map(torch.equal, t.weights(), exact))
    else:
        t.diloco.finish()


@pytest.mark.parametrize("how", [{"compress": "int4"}, {"compress": 8}, {"compress_weights": "2bit"}])
def test_invalid_settings(job: perdure.Job, how: dict[str, Any]) -> None:
    with pytest.raises(perdure.UsageError, match="choose"):
        Training(job, **how)


def test_tables(job: perdure.Job, tmp_path: Path) -> None:
    with pytest.raises(perdure.UsageError, match="rule set"):
        job.table("set", 4, dim=8, rule=perdure.Set(), encoding="int8")
    table = job.table("w", 4, dim=8, rule=perdure.Add(), encoding="2bit")
    delta = np.arange(32, dtype=np.float32).reshape(4, 8)
    rounded = delta.copy()
    table._round(rounded)
    table.inc_run(0, delta)
    job.clock()
    assert np.array_equal(table.get_run(0, 4), rounded)
    near = table._get_run_as("int8", 0, 4)
    assert 0 < np.abs(near - rounded).max() < 31 / 250
    assert np.array_equal(table.get_run(0, 4), rounded)
    for wrong in (np.zeros(3, np.float32), np.zeros(8), np.zeros((8, 2), np.float32).T):
        with pytest.raises(perdure.UsageError):
            table._round(wrong)
    with pytest.raises(perdure.NonFinite):
        table._round(np.full(8, np.nan, np.float32))
