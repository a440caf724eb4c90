"""`perdure launch --preload`: a process with the imported modules forks the program, again after a kill."""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL

#: A module that counts its imports.
HEAVY = """
import os, perdure._warm
perdure._warm.QUICK = {quick}
perdure._warm.FROZEN = 2
with open(os.environ["IMPORTS"], "a") as f:
    f.write(f"{{os.getpid()}}\\n")
"""

#: A program that kills itself once, in clock 3.
TRAIN = """
import os, signal, sys
import numpy as np, heavy, perdure
with perdure.join() as job:
    table = job.table("w", rows=8, dim=1, rule=perdure.Add())

    def step(clock):
        if clock == 3 and not os.path.exists(sys.argv[1]):
            open(sys.argv[1], "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        table.inc_run(0, np.ones((8, 1)))

    job.run(step)
    assert (table.get_run(0, 8) == 6).all()
"""


def environment(folder: Path, quick: float) -> dict[str, str]:
    (folder / "heavy.py").write_text(HEAVY.format(quick=quick))
    path = os.pathsep.join([str(folder), *sys.path])
    return os.environ | {"PYTHONPATH": path, "IMPORTS": str(folder / "imports")}


@pytest.mark.parametrize(("quick", "imports"), [(0.0, 1), (1000.0, 2)])
def test_preload(tmp_path: Path, quick: float, imports: int) -> None:
    """A killed program is forked again without another import, but the supervisor restarts one that died early."""
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", "1", "--preload", "heavy,perdure", "--clocks=6"]
    subprocess.run(
        [*command, *SMALL, "-q", f"--out={tmp_path / 'run'}", str(tmp_path / "train.py"), str(tmp_path / "killed")],
        env=environment(tmp_path, quick),
        check=True,
    )
    assert len((tmp_path / "imports").read_text().splitlines()) == imports


def slot(folder: Path, program: str) -> subprocess.Popen[str]:
    """Start a program like `perdure up` does for a slot."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "perdure", "--as-slot-of", "1", "heavy", str(folder / "program.py")]
    of = environment(folder, 0.0) | {"PERDURE_SLOT": "0"}
    return subprocess.Popen(command, env=of, stdout=subprocess.PIPE, text=True)


def test_variables_of_torchrun(tmp_path: Path) -> None:
    """Torchrun's variables for one machine are set, but no MASTER_ADDR, with which programs would form a group."""
    names = [f"{of}_{what}" for of in ("LOCAL", "GROUP", "ROLE") for what in ("RANK", "WORLD_SIZE")]
    names += ["RANK", "WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"]
    with slot(tmp_path, f"import os\nprint(*(os.environ.get(name) for name in {names}))") as process:
        assert process.stdout is not None
        assert process.stdout.read().split() == ["0", "1", "0", "1", "0", "1", "0", "1", "default", "None", "None"]


#: A program of an island. Its rank 1 fails once, in a way that is the third argument, and prints its environment then.
RANKS = """
import os, signal, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "GROUP_RANK")
os.write(1, " ".join([*(os.environ[name] for name in names), os.environ["MASTER_PORT"]]).encode() + bytes([10]))
first = not os.path.exists(sys.argv[1] + os.environ["RANK"])
open(sys.argv[1] + os.environ["RANK"], "w").close()
while not os.path.exists(sys.argv[1] + str(1 - int(os.environ["RANK"]))):
    pass
if first and os.environ["RANK"] == "1":
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
elif first:
    signal.pause()
"""


@pytest.mark.parametrize("kill", ["SIGKILL", "SIGSTOP"])
def test_ranks_of_an_island(tmp_path: Path, kill: str) -> None:
    """If a rank dies or freezes, all ranks end, and are started again with a new rendezvous."""
    (tmp_path / "program.py").write_text(RANKS)
    command = [sys.executable, "-m", "perdure", "--as-slot-of", ":3,2", "heavy", str(tmp_path / "program.py")]
    done = subprocess.run(
        [*command, str(tmp_path / "began"), kill],
        env=environment(tmp_path, 0.0) | {"PERDURE_SLOT": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = sorted(done.stdout.splitlines())
    assert [line.split()[:6] for line in lines] == [
        ["0", "0", "2", "2", "127.0.0.1", "0"],
        ["0", "0", "2", "2", "127.0.0.1", "0"],
        ["1", "1", "2", "2", "127.0.0.1", "0"],
        ["1", "1", "2", "2", "127.0.0.1", "0"],
    ]
    assert len({line.split()[6] for line in lines}) == 2


def test_error_of_a_rank(tmp_path: Path) -> None:
    """An island ends like the rank that failed, and the other ranks end with it."""
    (tmp_path / "program.py").write_text("import os, signal\nif os.environ['RANK'] == '1': os._exit(7)\nsignal.pause()")
    command = [sys.executable, "-m", "perdure", "--as-slot-of", ":2", "", str(tmp_path / "program.py")]
    assert subprocess.run(command, env=environment(tmp_path, 0.0), check=False).returncode == 7


def test_launch_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    command = [sys.executable, "-m", "perdure", "launch", "--nproc=2", str(tmp_path / "train.py")]
    torchrun = environment(tmp_path, 0.0) | {"TORCHELASTIC_RUN_ID": "none"}
    done = subprocess.run(command, env=torchrun, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "run perdure launch without torchrun" in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--nproc", "7", "--nproc-per-learner", "4"], "7 processes cannot be divided into learners of 4"),
        (["--nproc", "7", "--nproc-per-learner", "4,2"], "cannot be divided"),
        (["--nproc-per-learner", "0"], "invalid --nproc-per-learner 0"),
        (["--nproc-per-learner", "2,x"], "invalid --nproc-per-learner 2,x"),
        (["--nproc", "x", "--nproc-per-learner", "2"], "invalid"),
    ],
)
def test_sizes_of_learners(tmp_path: Path, flags: list[str], said: str) -> None:
    (tmp_path / "train.py").write_text("")
    command = [sys.executable, "-m", "perdure", "launch", *flags, str(tmp_path / "train.py")]
    done = subprocess.run(command, env=environment(tmp_path, 0.0), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert said in done.stderr


def test_signals_are_handed_on(tmp_path: Path) -> None:
    with slot(
        tmp_path, "import signal, sys\nsignal.signal(15, lambda *_: sys.exit(7))\nprint(1, flush=True)\nsignal.pause()"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        process.terminate()
        assert process.wait() == 7


def test_a_program_does_not_outlive_its_parent(tmp_path: Path) -> None:
    with slot(tmp_path, "import signal\nprint(1, flush=True)\nwhile True: signal.pause()") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        process.kill()
        assert process.stdout.read() == ""  # the pipe closes when the program ends
        assert process.wait() == -signal.SIGKILL


def test_mistakes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    for modules in ("nothing_of_that_name", "perdure.nothing", "nothing.at.all", "", "json,", ".json"):
        done = subprocess.run(
            [sys.executable, "-m", "perdure", "launch", f"--preload={modules}", str(tmp_path / "train.py")],
            env=environment(tmp_path, 0.0),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert "module" in done.stderr
        assert done.stderr.startswith("perdure: launch: --preload ")
        assert done.stderr.count("\n") == 1


def test_a_death_is_shown_with_its_last_lines(tmp_path: Path) -> None:
    """The console names the slot that failed, its clock and its error."""
    (tmp_path / "train.py").write_text(
        """
import sys, numpy as np, perdure
with perdure.join() as job:
    table = job.table("w", rows=8, dim=1, rule=perdure.Add())

    def step(clock):
        if clock == 2 and job.slot == 1:
            print("the rate is", 0.5)
            raise ValueError(f"batch {clock} is empty")
        table.inc_run(0, np.ones((8, 1)))

    job.run(step)
"""
    )
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", "2", "--max-failures", "1", "--clocks=6"]
    done = subprocess.run(
        [*command, *SMALL, f"--out={tmp_path / 'run'}", str(tmp_path / "train.py")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert re.search(r"worker:1 failed .*clock 2 .*ended with code 1: ValueError: batch 2 is empty", said), said
    assert re.search(r"^ +\| the rate is 0.5$", said, re.MULTILINE), said


def test_death_while_the_results_are_written(tmp_path: Path) -> None:
    """A program that is killed after the job's end is not restarted, and launch fails with a reason."""
    (tmp_path / "train.py").write_text(
        """
import os, signal, sys, time
from pathlib import Path
import numpy as np, perdure
with perdure.join() as job:
    table = job.table("w", rows=8, dim=1, rule=perdure.Add())
    job.run(lambda clock: table.inc_run(0, np.ones((8, 1))))
    slot, folder = job.slot, job.run_folder
if slot == 1:
    while not (folder / "model.safetensors").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", "2", "--clocks=6"]
    done = subprocess.run(
        [*command, *SMALL, "-q", f"--out={tmp_path / 'run'}", str(tmp_path / "train.py")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "worker:1 killed by SIGKILL" in done.stderr


def test_the_line_that_resumes_an_interrupted_run(tmp_path: Path) -> None:
    """The command in it continues the run, with as many slots and with the program's arguments."""
    (tmp_path / "train.py").write_text("""
import os, sys, numpy as np, perdure
assert sys.argv[1:] == ["a b"]
with perdure.join() as job:
    table = job.table("w", rows=8, dim=1, rule=perdure.Add())

    def step(clock):
        if clock == 4 and job.slot == 1:
            os.write(os.open("reached", os.O_WRONLY), b"x")
        table.inc_run(0, np.ones((8, 1)))
        if os.path.exists("again"):
            assert job.now > 4
            job.end_job()

    job.run(step)
""")
    os.mkfifo(tmp_path / "reached")
    command = [sys.executable, "-m", "perdure", "launch", "--nproc", "2", *SMALL, "--recovery=checkpoint:1", "-q"]
    here: dict[str, Any] = {"cwd": tmp_path, "env": environment(tmp_path, 0.0)}
    reached = os.open(tmp_path / "reached", os.O_RDONLY | os.O_NONBLOCK)
    training = subprocess.Popen([*command, "--out=run", "train.py", "a b"], stderr=subprocess.PIPE, text=True, **here)
    poll = select.poll()
    poll.register(reached, select.POLLIN)
    poll.register(os.pidfd_open(training.pid), select.POLLIN)
    poll.poll()
    assert training.poll() is None
    training.send_signal(signal.SIGINT)
    line = training.communicate()[1].splitlines()[-1]
    assert training.returncode != 0
    assert "resuming starts at clock" in line
    assert "no final checkpoint" not in line
    again = shlex.split(line.split(": ")[-1])
    assert again[:4] == ["python", "-m", "perdure", "launch"]
    (tmp_path / "again").touch()
    subprocess.run([sys.executable, *again[1:4], "-q", "--out=run2", *again[4:]], check=True, **here)
    assert (tmp_path / "run2" / "summary.json").exists()


def test_a_rank_that_ends_slowly_is_not_frozen(tmp_path: Path) -> None:
    """Python stops all threads when it ends, also the one that shows life."""
    (tmp_path / "program.py").write_text("""
import os, sys, time

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(4)

sys.slow = Slow()
""")
    command = [sys.executable, "-m", "perdure", "--as-slot-of", ":1", "heavy", str(tmp_path / "program.py")]
    done = subprocess.run(
        command,
        env=environment(tmp_path, 0.0) | {"PERDURE_SLOT": "0"},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,  # a rank that is killed is started again, without an end
    )
    assert "frozen" not in done.stderr
