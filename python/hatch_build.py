"""Puts the program of PERDURE_PROGRAM into a wheel, which is then for the platform of PERDURE_PLATFORM only.

With it go the licences of all that is in the program, of PERDURE_LICENCES.
The wheel's version is made of PERDURE_VERSION, what `perdure version` says, and of PERDURE_COMMITS, how many commits
there are: a newer wheel has a higher one.
"""

from __future__ import annotations

import os
import re
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
    """Without the program the wheel is pure, and takes the one in PATH."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        program, platform = os.environ.get("PERDURE_PROGRAM"), os.environ.get("PERDURE_PLATFORM")
        if not program or not platform:
            return
        licences = os.environ.get("PERDURE_LICENCES")
        if not licences:
            raise SystemExit("PERDURE_LICENCES is to name the file that make licences writes: it goes with the program")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["force_include"][program] = "perdure/bin/perdure"
        build_data["force_include"][licences] = "perdure/bin/licences.txt"
