"""A replacement process continues from the draft of its predecessor and ends with the same model."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL

import perdure
from perdure._draft import Drafts

torch = pytest.importorskip("torch")
pytest.importorskip("torchdata")

#: Slot 1 writes a draft at each step and kills itself once, after the 13th step of clock 3. Each process appends its
#: first step to a file. The argument selects a variant.
TRAIN = """
import hashlib, os, signal, sys
import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader
import perdure, perdure._draft
perdure._draft.SHARE = 1e9
torch.set_num_threads(1)
out, how = sys.argv[1], sys.argv[2].split()
if "unwritten" in how:
    with open(os.path.join(os.environ["PERDURE_RUN"], "drafts"), "w") as f:
        f.write("a file where the folder would be")
tokens = perdure.Count()
weights = {"counted": tokens, "by hand": lambda: tokens()}.get(" ".join(how[1:]))
job = perdure.start()
rank, of = job.share
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
inner = torch.optim.AdamW(model.parameters(), 1e-2)
x = torch.randn(512, 4, generator=torch.Generator().manual_seed(9))
loader = StatefulDataLoader(x[rank::of], batch_size=4, shuffle=True)
counts = job.table("counts", 8, dim=1, rule=perdure.Add())
with perdure.DiLoCo(job, model, inner, sync_every=20, weights=weights, state=[loader]) as d:
    with open(f"{out}.begun.{rank}", "a") as f:
        f.write(f"{job.now}:{d._steps} ")
    while job.now <= 6:
        for batch in loader:
            inner.zero_grad()
            (model(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
            tokens.add(batch.abs().sum())
            if "incs" in how and d._steps == 9:
                counts.inc([0], [[1.0]])
            inner.step()
            if "kill" in how and rank == 1 and job.now == 3 and d._steps == 13 and not os.path.exists(f"{out}.killed"):
                open(f"{out}.killed", "w").close()
                if "torn" in how:
                    newest = max(d._drafts._files, key=lambda path: path.stat().st_mtime_ns)
                    os.truncate(newest, newest.stat().st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            if job.now > 6:
                break
    total = counts.get_run(0, 1)
h = hashlib.sha256()
for v in model.state_dict().values():
    h.update(v.numpy().tobytes())
with open(f"{out}.{rank}", "w") as f:
    f.write(f"{h.hexdigest()} {total.sum()}")
"""


def launch(folder: Path, name: str, how: str) -> tuple[list[str], str]:
    """Train with two processes. Return the model of each, and the first steps of slot 1's processes."""
    program, out = folder / "train.py", folder / name
    program.write_text(TRAIN)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", "2", "--servers", "1", *SMALL, "-q"]
    done = subprocess.run(
        [*command, "--out", f"{out}.run", str(program), str(out), how],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + (folder / f"{name}.run" / "logs" / "worker-1.log").read_text()
    assert not list((folder / f"{name}.run" / "drafts").glob("*"))
    return [(folder / f"{name}.{rank}").read_text() for rank in range(2)], (folder / f"{name}.begun.1").read_text()


@pytest.mark.parametrize(
    ("of", "how", "begun"),
    [
        ("calm", "kill", "3:13"),
        ("calm", "kill torn", "3:12"),
        # The program's own inc died with the process, so a draft after it would lose it.
        ("calm incs", "kill incs", "3:9"),
        # What was counted since the last outer step is the weight of the slot's part: it is in the draft,
        ("calm counted", "kill counted", "3:13"),
        # or nobody knows whether it is, and there is none.
        ("calm by hand", "kill by hand", "3:0"),
        ("calm", "kill unwritten", "3:0"),
    ],
)
def test_goes_on(tmp_path: Path, calm: dict[str, list[str]], of: str, how: str, begun: str) -> None:
    if of not in calm:
        calm[of], _ = launch(tmp_path, "calm", of)
    storm, steps = launch(tmp_path, "storm", how)
    assert storm == calm[of]
    assert steps.split() == ["1:0", begun]
    said = [(tmp_path / "storm.run" / "logs" / f"worker-{slot}.log").read_text() for slot in range(2)]
    for log, count in zip(said, (1, 2) if "unwritten" in how else (0, 0), strict=True):  # each process warns once
        assert log.count("RuntimeWarning: cannot write drafts to") == count, log
        assert log.count("free space there") == count, log


@pytest.fixture(scope="module")
def calm() -> dict[str, list[str]]:
    """Return the slots' models without a kill, for a variant of the program."""
    return {}


def test_counts_by_weight(tmp_path: Path, calm: dict[str, list[str]]) -> None:
    """The models of the tests above depend on the counted weights."""
    for of in ("calm", "calm counted", "calm by hand"):
        if of not in calm:
            calm[of], _ = launch(tmp_path, of.replace(" ", "-"), of)
    assert calm["calm counted"] == calm["calm by hand"] != calm["calm"]


def test_count() -> None:
    count = perdure.Count()
    with pytest.warns(RuntimeWarning, match="nothing was counted since the last outer step, .* call add before"):
        assert (
            0 < count() < 1e-6
        )  # an update needs a weight above 0; otherwise the slot would fail here after each restart
    count.add(3)
    count.add(torch.tensor(0.1))
    again = perdure.Count()
    again.load_state_dict(count.state_dict())
    again.add(2)
    assert again() == 3 + float(torch.tensor(0.1)) + 2
    assert count() == 3 + float(torch.tensor(0.1))
    count.add(1)
    assert count() == 1
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(perdure.UsageError, match="add only finite numbers"):
            count.add(wrong)


def test_files(tmp_path: Path) -> None:
    drafts = Drafts(tmp_path, 3)
    assert drafts.read() is None
    for i in range(3):
        drafts.write({"i": i, "values": torch.full((i + 1,), float(i))})
    assert not drafts.due()
    newest = drafts.read()
    assert newest["i"] == 2
    assert newest["values"].tolist() == [2.0] * 3
    for length in range(newest_size := drafts._files[0].stat().st_size):
        data = drafts._files[0].read_bytes()
        drafts._files[0].write_bytes(data[:length])
        assert Drafts(tmp_path, 3).read()["i"] == 1, (length, newest_size)
        drafts._files[0].write_bytes(data)
    again = Drafts(tmp_path, 3)
    again.read()
    again.write({"i": 3})
    assert Drafts(tmp_path, 3).read()["i"] == 3
    again.forget()
    assert Drafts(tmp_path, 3).read() is None


def test_no_folder_no_drafts(tmp_path: Path) -> None:
    assert not Drafts(None, 0).due()
    assert not Drafts(tmp_path / "elsewhere", 0).due()


def test_what_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "drafts").write_text("a file where the folder would be")
    drafts = Drafts(tmp_path, 0)
    assert drafts.due()
    with pytest.warns(RuntimeWarning, match=r"drafts \(File exists\)") as said:
        drafts.write({"i": 0})
    assert not drafts.due()
    assert drafts.read() is None
    drafts.forget()
    assert len(said) == 1


def test_full_disk(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("only root can make a small disk")
    try:
        drafts = Drafts(tmp_path, 0)
        drafts.write({"i": 0})
        with pytest.warns(RuntimeWarning, match="No space left on device.*since the last outer step") as said:
            drafts.write({"values": bytes(1 << 20)})
        assert len(said) == 1
        assert not drafts.due()
        assert not list((tmp_path / "drafts").iterdir())
        again = Drafts(tmp_path, 0)  # the slot's next process
        again.write({"i": 1})
        assert Drafts(tmp_path, 0).read() == {"i": 1}
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


class Term(Exception):
    """Raised by the program's own SIGTERM handler, so that the test continues."""


def lives(folder: Path, when: dict[int, str], steps: int = 12) -> tuple[str, list[int]]:
    """Train with one slot that SIGTERM ends at the given steps. Return the model, and each process's first step."""
    from conftest import Cluster
    from launched import hash_of
    from torch import nn
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Slow(torch.optim.AdamW):
        told = False

        def step(self, *of: Any, **how: Any) -> Any:
            if self.told:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().step(*of, **how)

    def life(job: perdure.Job) -> str:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
        inner = Slow(model.parameters(), 1e-2)
        loader = StatefulDataLoader(torch.randn(64, 4, generator=torch.Generator().manual_seed(9)), 4, shuffle=True)
        with perdure.DiLoCo(job, model, inner, sync_every=steps, state=[loader]) as d:
            begun.append(d._steps)
            for batch in loader:
                how = when.get(d._steps + 1, "")
                inner.zero_grad()
                model(batch).square().mean().backward()  # changes the running means
                inner.told = how == "amid the step"
                if how == "before the step":
                    os.kill(os.getpid(), signal.SIGTERM)
                inner.step()
                if how == "evaluation":
                    model.eval()
                    torch.rand(3)
                    os.kill(os.getpid(), signal.SIGTERM)
                if how == "other weights":
                    for p in model.parameters():
                        p.data.mul_(0.5)
                    os.kill(os.getpid(), signal.SIGTERM)
                if d.synced:
                    break
        return hash_of(model)

    def told(*_: Any) -> None:
        raise Term

    begun: list[int] = []
    before = signal.signal(signal.SIGTERM, told)
    cluster = Cluster(folder, "--workers", "1", "--servers", "1", "--clocks", "1000")
    try:
        for _ in range(len(when) + 1):
            with contextlib.suppress(Term), cluster.join(0) as job:
                return life(job), begun
            del when[min(when)]
        raise AssertionError("it has not ended")
    finally:
        assert signal.signal(signal.SIGTERM, before) is told  # DiLoCo has removed its handler
        cluster.end()


def test_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process continues from the last step, although no draft was due."""
    monkeypatch.setattr("perdure._draft.Drafts.due", lambda _: False)
    monkeypatch.setattr("perdure._draft.SHARE", 1e9)  # so that drafts are written however short a step is
    monkeypatch.setenv("PERDURE_RUN", str(tmp_path / "calm" / "run"))
    calm, begun = lives(tmp_path / "calm", {})
    assert begun == [0]
    monkeypatch.setenv("PERDURE_RUN", str(tmp_path / "torn" / "run"))
    when = {3: "evaluation", 5: "before the step", 7: "amid the step", 9: "other weights"}
    torn, begun = lives(tmp_path / "torn", when)
    assert begun == [0, 3, 4, 7, 7]  # step 9 wrote no draft, so the last one is of step 7
    assert torn == calm


def test_sigterm_without_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If steps are too short to keep each one, SIGTERM takes effect after the next step."""
    monkeypatch.setattr("perdure._draft.Drafts.due", lambda _: False)
    monkeypatch.setattr("perdure._draft.SHARE", 0.0)
    monkeypatch.setenv("PERDURE_RUN", str(tmp_path / "run"))
    _, begun = lives(tmp_path, {3: "evaluation"})
    assert begun == [0, 4]


def test_one_slow_copy_does_not_end_drafts_of_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure._notice import Notice

    now = 100.0
    monkeypatch.setattr("perdure._notice.time.monotonic", lambda: now)

    def copy(seconds: float) -> Any:
        nonlocal now
        now += seconds

    notice = Notice(lambda: [torch.ones(1)], list, lambda *_: None)
    kept = []
    try:
        for step in range(100):
            now += 1
            notice.step()
            if notice.affords():
                notice.keep(lambda slow=step == 0: copy(0.5 if slow else 0.001))
                kept.append(step)
            else:
                notice.drop()
    finally:
        notice.close()
    assert kept == [0, *range(25, 100)]  # the first copy takes 2% of 25 s


def test_sigterm_during_a_step_is_passed_on_once() -> None:
    """A program that handles SIGTERM itself, like other libraries' trainers, does not receive a second one."""
    from perdure._notice import Notice

    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    notice = Notice(lambda: [torch.ones(1)], list, lambda *_: None)
    try:
        notice.step()
        os.kill(os.getpid(), signal.SIGTERM)
        assert not told
        notice.drop()
        assert len(told) == 1
        notice.step()
        notice.drop()
        assert len(told) == 1
    finally:
        notice.close()
        signal.signal(signal.SIGTERM, before)


def test_sigterm_of_a_process_that_the_program_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process inherits the handler, which must end it without writing a draft."""
    from perdure._notice import Notice

    monkeypatch.setattr("perdure._draft.SHARE", 1e9)
    read, write = os.pipe()
    notice = Notice(lambda: [torch.ones(1)], list, lambda *_: os.write(write, b"draft"))
    try:
        notice.step()
        assert notice.affords()
        notice.keep(dict)
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
    finally:
        notice.close()
        os.close(write)
    assert os.read(read, 5) == b""
    os.close(read)
