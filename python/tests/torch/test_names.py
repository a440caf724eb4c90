"""The package's names that need PyTorch."""

from __future__ import annotations

import inspect

import perdure


def test_names() -> None:
    """Editors and `inspect` find the names, and all of them can be imported."""
    assert {"Count", "DataParallel", "ServerOptimizer", "DiLoCo", "start"} <= set(dir(perdure))
    for name in ("DataParallel", "ServerOptimizer"):
        assert inspect.isclass(dict(inspect.getmembers(perdure))[name])
