"""Put the perdure program into a wheel.

`make wheels` names the program (PERDURE_PROGRAM), its licences (PERDURE_LICENCES) and the wheel's platform
(PERDURE_PLATFORM). Otherwise, in a checkout and with Go installed, the program is built for this machine. Without
either, the wheel is pure, and the package uses the program in PATH. The wheel's version is derived from
PERDURE_VERSION, the output of `git describe`, and PERDURE_COMMITS, the number of commits. A newer wheel has a higher
version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FIRST = "0.1.0"  # the version that is to be released first

#: What `git describe --tags --always --dirty` says: v1.2.0, v1.2.0-rc.1-5-gabc1234-dirty; or of no tag abc1234.
_TAGGED = re.compile(
    r"v?(?P<number>\d+(\.\d+)*)(-?(?P<stage>a|alpha|b|beta|rc)[.-]?(?P<count>\d+))?"
    r"(-(?P<since>\d+)-g(?P<commit>[0-9a-f]{7,}))?(?P<dirty>-dirty)?"
)
_UNTAGGED = re.compile(r"(?P<commit>[0-9a-f]{7,})(?P<dirty>-dirty)?")


def version(said: str, commits: str) -> str:
    """A version of Perdure, as Python's packages have it (PEP 440)."""
    if of := _UNTAGGED.fullmatch(said):
        number = f"{_FIRST}.dev{int(commits or 0)}"
    elif of := _TAGGED.fullmatch(said):
        stage = {"alpha": "a", "beta": "b"}.get(of["stage"], of["stage"])
        number = of["number"] + (f"{stage}{of['count']}" if stage else "")
        number += f".post{of['since']}" if of["since"] else ""
    elif said in ("", "unversioned"):
        return f"{_FIRST}.dev{int(commits or 0)}"
    else:
        raise ValueError(f"PERDURE_VERSION is {said!r}, which is neither of a tag such as v1.2.0 nor of a commit")
    local = (["g" + of["commit"]] if of["commit"] else []) + (["dirty"] if of["dirty"] else [])
    return number + ("+" + ".".join(local) if local else "")


def of_environment() -> str:
    """The version of what is built now."""
    return version(os.environ.get("PERDURE_VERSION", ""), os.environ.get("PERDURE_COMMITS", ""))


class ProgramHook(BuildHookInterface):  # type: ignore[type-arg]
    """Add the program to the wheel, if there is one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        program, platform = os.environ.get("PERDURE_PROGRAM"), os.environ.get("PERDURE_PLATFORM")
        licences = os.environ.get("PERDURE_LICENCES")
        if program and platform:
            if not licences:
                raise SystemExit("PERDURE_LICENCES must name the file that make licences writes")
        elif version == "editable" or not (built := self._build()):
            return
        else:
            program, platform = built, sysconfig.get_platform().replace("-", "_").replace(".", "_")
            licences = str(Path(self.root).parent / "docs" / "licences.md")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["force_include"][program] = "perdure/bin/perdure"
        build_data["force_include"][licences] = "perdure/bin/licences.txt"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the program that initialize has built next to the wheel."""
        if not os.environ.get("PERDURE_PROGRAM"):
            (Path(self.directory) / "perdure").unlink(missing_ok=True)

    def _build(self) -> str | None:
        """Build the program from the checkout; None without a checkout or Go."""
        root = Path(self.root).parent
        go = shutil.which("go")
        if go is None or not (root / "cmd" / "perdure").is_dir():
            return None
        said = os.environ.get("PERDURE_VERSION") or _describe(root)
        program = str(Path(self.directory) / "perdure")
        flags = ["-trimpath", "-buildvcs=false", "-ldflags", f"-s -w -X main.version={said}"]
        command = [go, "build", *flags, "-o", program, "./cmd/perdure"]
        if subprocess.run(command, cwd=root, env=os.environ | {"CGO_ENABLED": "0"}).returncode:
            raise SystemExit("cannot build the perdure program; see Go's error above")
        return program


def _describe(root: Path) -> str:
    """Return the output of `git describe` in the checkout, as make uses it."""
    command = ["git", "describe", "--tags", "--always", "--dirty"]
    try:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unversioned"
