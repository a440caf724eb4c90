"""Programs that join jobs with keys."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import SMALL, Cluster

import perdure
from perdure._agent import binary


def new_keys(folder: Path) -> Path:
    subprocess.run([binary(), "keys", "new", str(folder)], check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return new_keys(tmp_path / "keys")


@pytest.fixture
def guarded(tmp_path: Path, keys: Path) -> Iterator[Cluster]:
    """A job with keys and two slots that no worker has joined yet."""
    of = Cluster(tmp_path, "--workers", "2", "--servers", "1", "--clocks", "50", "--keys", str(keys))
    yield of
    of.end()


def test_joins_with_keys(guarded: Cluster, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = guarded.owner.coordinator
    assert guarded.owner.keys == str(keys)
    monkeypatch.setenv("PERDURE_COORDINATOR", address)
    a, b = perdure.join(address, slot=0, keys=str(keys / "worker")), perdure.join(keys=str(keys))
    assert (a.slot, b.slot) == (0, 1)
    for job in (a, b):
        table = job.table("w", rows=4, dim=2, rule=perdure.Add())
        table.inc([1], [[1, 1]])
        assert table.get([1]).tolist() == [[1, 1]]
        job.close()
    monkeypatch.setenv("PERDURE_KEYS", str(keys / "worker"))
    for where in (address, ""):
        perdure.join(where, slot=0).close()


def test_who_is_refused(guarded: Cluster, keys: Path, tmp_path: Path) -> None:
    address, secret = guarded.owner.coordinator, guarded.owner.secret_file
    other = new_keys(tmp_path / "other")
    for kind, folder, said in (
        (perdure.Refused, "", "the job requires keys"),
        (perdure.Refused, other / "worker", "another job's keys"),
        (perdure.Refused, keys / "viewer", "viewer/viewer does not allow the role worker"),
        (perdure.UsageError, keys / "nothing", "no such file"),
    ):
        with pytest.raises(kind, match=said) as refused:
            perdure.join(address, secret, keys=str(folder), patience=5)
        assert "\n" not in str(refused.value)
    perdure.join(address, keys=str(keys / "worker")).close()  # the rejected program has done no harm


def test_starts_with_keys(tmp_path: Path, keys: Path) -> None:
    with perdure.start(clocks=3, out=tmp_path / "a run", args=[*SMALL, "--keys", str(keys)]) as job:
        job.run(lambda _: None)
