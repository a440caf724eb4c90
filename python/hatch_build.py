"""Puts the program of PERDURE_PROGRAM into a wheel, which is then for the platform of PERDURE_PLATFORM only.

With it go the licences of all that is in the program, of PERDURE_LICENCES.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


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
