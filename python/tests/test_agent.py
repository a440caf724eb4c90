"""The program that the package needs, and an agent that is not as it should be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from perdure import _agent

#: What pip makes of the entry point `perdure`.
COMMAND = "#!{}\nimport sys\nfrom perdure.__main__ import main\nsys.exit(main())\n"


def script(file: Path, text: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


def perdure_version(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, "version"],
        env={"PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )


def test_program_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = script(tmp_path / "words", "")
    for path, said in ((tmp_path / "no", "No such file"), (tmp_path, "Permission denied"), (words, "Exec format")):
        monkeypatch.setenv("PERDURE_BINARY", str(path))
        with pytest.raises(perdure.UsageError, match=f"cannot be started: {said}"):
            perdure.start()
        done = perdure_version([sys.executable, "-m", "perdure"], PERDURE_BINARY=str(path))
        assert done.returncode == 2
        assert done.stderr.startswith(f"perdure: {path} cannot be started: {said}")
        assert done.stderr.count("\n") == 1


def test_command_of_the_package_is_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PATH has the package's own command first, as in a virtual environment, that does not start itself."""
    command = script(tmp_path / "bin" / "perdure", COMMAND.format(sys.executable))
    done = perdure_version([str(command)], PATH=str(command.parent))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("perdure: this package has no perdure program for this platform")
    program = tmp_path / "programs" / "perdure"
    program.parent.mkdir()
    program.symlink_to(os.environ["PERDURE_BINARY"])
    done = perdure_version([str(command)], PATH=f"{command.parent}:/nothing:{program.parent}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("perdure ")
    done = perdure_version([str(command)], PERDURE_BINARY=str(command))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is this command itself" in done.stderr
    monkeypatch.delenv("PERDURE_BINARY")
    monkeypatch.setenv("PATH", str(command.parent))
    for begin in (perdure.start, lambda: perdure.join("host:7000")):
        with pytest.raises(perdure.UsageError, match="has no perdure program"):
            begin()


def test_other_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(_agent.socket, "SOCK_SEQPACKET")  # macOS has none
    for begin in (perdure.start, lambda: perdure.join("host:7000")):
        with pytest.raises(perdure.UsageError, match="runs on Linux, and this is darwin"):
            begin()
