"""What the package has by the names that need PyTorch."""

from __future__ import annotations

import inspect

import perdure


def test_names() -> None:
    """An editor, and `inspect`, find them; all can be had."""
    assert {"Count", "DataParallel", "DiLoCo", "start"} <= set(dir(perdure))
    assert inspect.isclass(dict(inspect.getmembers(perdure))["DataParallel"])
