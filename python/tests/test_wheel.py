"""The wheel's version, and its installation by a new user. `make check-wheel` builds the wheel under test."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import venv
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
Version = pytest.importorskip("packaging.version").Version
ROOT = Path(__file__).parents[2]
version = runpy.run_path(str(ROOT / "python" / "hatch_build.py"))["version"]


def test_newer_is_higher() -> None:
    """pip orders the wheels' versions like their commits.

    A version counts the commits since the last tag, or all commits if there is no tag.
    """
    history = [
        ("unversioned", "", "0.1.0.dev0"),
        ("d847c057", "1142", "0.1.0.dev1142+gd847c057"),
        ("1234567", "1143", "0.1.0.dev1143+g1234567"),
        ("1234567-dirty", "1143", "0.1.0.dev1143+g1234567.dirty"),
        ("v0.1.0-rc.1", "1200", "0.1.0rc1"),
        ("v0.1.0-rc.1-3-gabcdef0", "1203", "0.1.0rc1.post3+gabcdef0"),
        ("v0.1.0-rc2-dirty", "1204", "0.1.0rc2+dirty"),
        ("v0.1.0", "1210", "0.1.0"),
        ("v0.1.0-9-gabcdef0", "1219", "0.1.0.post9+gabcdef0"),
        ("v0.1.0-10-gabcdef0-dirty", "1220", "0.1.0.post10+gabcdef0.dirty"),
        ("v0.2.0-alpha1", "1300", "0.2.0a1"),
        ("0.2.0", "1310", "0.2.0"),
    ]
    made = [version(said, commits) for said, commits, _ in history]
    assert made == [want for _, _, want in history]
    versions = [Version(of) for of in made]
    assert versions == sorted(versions)
    assert len(set(versions)) == len(versions)
    assert [str(of) for of in versions] == made  # versions are in normalized form


@pytest.mark.parametrize("said", ["main", "release-1.2", "v1.2.0-3", "abc"])
def test_no_version(said: str) -> None:
    with pytest.raises(ValueError, match=f"PERDURE_VERSION is '{said}', which is neither"):
        version(said, "7")


@pytest.mark.skipif("PERDURE_WHEEL" not in os.environ, reason="make check-wheel builds a wheel, and names it")
def test_as_a_new_user(tmp_path: Path) -> None:
    """Install the wheel into an empty environment, and run the README's first Python program."""
    wheel = Path(os.environ["PERDURE_WHEEL"])
    venv.create(tmp_path / "venv", with_pip=True)
    own = ("PYTHON", "PERDURE", "VIRTUAL_ENV")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    environment |= {"PATH": f"{tmp_path / 'venv' / 'bin'}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}

    def run(*command: str) -> str:
        done = subprocess.run(
            [str(tmp_path / "venv" / "bin" / command[0]), *command[1:]],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout

    run("pip", "install", "--quiet", "--disable-pip-version-check", str(wheel.absolute()))
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert program is not None
    run("python", "-c", program.group(1) + f"assert perdure.__file__.startswith({str(tmp_path)!r})\n")
    of = Version(run("python", "-c", "import importlib.metadata as m; print(m.version('perdure'))").strip())
    commit = re.search(r"[0-9a-f]{7,}", of.local or "")
    assert (commit.group() if commit else of.base_version) in run("perdure", "version")
    files = list((tmp_path / "venv").glob("lib/python*/site-packages/perdure-*.dist-info/licenses/LICENSE"))
    assert [file.read_text() for file in files] == [(ROOT / "LICENSE").read_text()]
    assert "perdure launch --nproc 4" in run("perdure", "launch", "--help")


@pytest.mark.skipif("PERDURE_WHEEL" not in os.environ, reason="make check-wheel installs the checkout")
def test_from_a_checkout(tmp_path: Path) -> None:
    """`pip install` of the checkout builds the program."""
    venv.create(tmp_path / "venv", with_pip=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PERDURE", "VIRTUAL_ENV", "PYTHON"))}
    pip = [str(tmp_path / "venv" / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(ROOT / "python")], env=environment, check=True)
    done = subprocess.run([str(tmp_path / "venv" / "bin" / "perdure"), "version"], env=environment, check=True)
    assert done.returncode == 0
