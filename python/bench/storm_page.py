"""Print the table, and draw the picture, of files that `storm.py` has written.

    python storm_page.py storms/*.json --picture storms.svg

Each run is compared with a run of the same system and number of learners without kills.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

Line = dict[str, Any]


class Kill(NamedTuple):
    """The cost of one kill, in seconds. Kills followed by another one before recovery are left out."""

    survivors: float  # delay of their next outer step
    back: float | None  # until an outer step had the victim's samples; None: the victim was not a learner
    preparing: float  # of that, until its replacement had imported its modules and read its data


class Run:
    """A run, read from its file."""

    def __init__(self, path: Path) -> None:
        of = json.loads(path.read_text())
        self.of = of
        self.system: str = of["system"]
        self.by = self.system + (", preloaded" if of.get("preload") else "")
        self.learners: int = of["learners"]
        self.per_hour: float = of["per_hour"]
        self.also: bool = of["also"]
        self.begun, self.ended = of["begun"], of["ended"]
        self.said: list[Line] = of["said"]
        self.kills: list[Line] = [k for k in of["kills"] if not k.get("missed")]
        self.loss = next((line["loss"] for line in self.said if line["what"] == "loss"), None)
        self.resets = 0  # how often the model restarted from its initial weights
        self.steps = self._steps()

    def _steps(self) -> list[tuple[float, int]]:
        """Return the number of learners' rounds in the model over time.

        A learner's step is removed again if the others continue from a model without it.
        """
        counted: dict[int, set[int]] = defaultdict(set)  # by outer step: learners with samples in it
        now, course = 0, []
        for line in self.said:
            if line["what"] != "commit":
                continue
            step = line["step"]
            if step < now:
                self.resets += 1
                for late in [s for s in counted if s >= step]:
                    del counted[late]
            now = step
            if line["counts"]:
                counted[step].add(line["learner"])
            course.append((line["at"], sum(map(len, counted.values()))))
        return course

    def rounds(self, at: float) -> int:
        """Return the number of learners' rounds in the model at a time."""
        return next((count for when, count in reversed(self.steps) if when <= at), 0)

    @property
    def rate(self) -> float:
        """Rounds added to the model per second."""
        return (self.rounds(self.ended) - self.rounds(self.begun)) / (self.ended - self.begun)

    def times(self, without: int | None = None) -> list[float]:
        """Return the times of outer steps, without those of one learner."""
        found: list[float] = []
        for line in self.said:
            if line["what"] == "commit" and line["learner"] != without and (not found or line["at"] > found[-1] + 0.5):
                found.append(line["at"])
        return found

    def preparing(self) -> float:
        """Return the seconds in which replacements were importing their modules and reading their data."""
        spans = sorted(s for s in (self._prepared(k) for k in self.kills) if s is not None)
        total, until = 0.0, 0.0
        for begun, ended in spans:
            total += max(0.0, ended - max(begun, until))
            until = max(until, ended)
        return total

    def _prepared(self, kill: Line) -> tuple[float, float] | None:
        begun = [
            s for s in self.said if s["what"] == "begun" and s["learner"] == kill["learner"] and s["at"] > kill["at"]
        ]
        for first in begun:
            for line in self.said:
                if line["pid"] == first["pid"] and line["what"] == "prepared":
                    return first["at"], line["at"]
        return None

    def cost(self, rhythm: float) -> list[Kill]:
        """Return the cost of each kill. rhythm: seconds between two outer steps without kills."""
        found = []
        for i, kill in enumerate(self.kills):
            at, victim = kill["at"], kill["learner"]
            until = self.kills[i + 1]["at"] if i + 1 < len(self.kills) else self.ended
            times = self.times(victim)
            before = [t for t in times if t <= at]
            behind = [t for t in times if at < t]
            returned = [s["at"] for s in self.said if s["what"] == "commit" and s["learner"] == victim and s["counts"]]
            back = next((t for t in returned if t > at), None)
            if not before or not behind or max(behind[0], back or 0.0) > until or (victim is not None and back is None):
                continue
            if i and self.kills[i - 1]["at"] > before[-1]:
                continue  # both kills are in the same interval
            spent = self._prepared(kill)
            preparing = spent[1] - spent[0] if spent is not None else 0.0
            found.append(Kill(behind[0] - before[-1] - rhythm, back - at if back is not None else None, preparing))
        return found


def spread(values: list[float]) -> str:
    """Format the median and the quartiles, or all values if there are few."""
    if not values:
        return "–"
    middle = statistics.median(values)
    if len(values) < 4:
        return f"{middle:.1f} ({', '.join(f'{v:.1f}' for v in sorted(values))})"
    low, _, high = statistics.quantiles(values, n=4)
    return f"{middle:.1f} ({low:.1f} to {high:.1f})".replace("-0.0", "0.0")


def table(runs: list[Run]) -> list[str]:
    """Return the lines of the table."""
    calm: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in runs:
        if not run.per_hour:
            calm[run.system, run.learners].append(run)
    lines = [
        "| learners | killed | system | kills | of the samples | that, without preparation "
        "| survivors' outer step later by, s | that, without preparation | victim's samples count again after, s "
        "| of that: preparation | model restarts | loss |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[int, float, bool, str], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.learners, run.per_hour, run.also, run.by].append(run)
    for (learners, per_hour, also, system), of in sorted(groups.items()):
        beside = calm[of[0].system, learners]
        if not beside:
            raise SystemExit(f"there is no run of {system} with {learners} learners and --per-hour 0 to compare with")
        rate = statistics.mean(run.rate for run in beside)
        gaps = [b - a for run in beside for a, b in zip(run.times(), run.times()[1:], strict=False)]
        kills = [kill for run in of for kill in run.cost(statistics.median(gaps))]
        parts = [run.rate / rate for run in of]
        apart = [run.rate / rate / (1 - run.preparing() / (run.ended - run.begun)) for run in of]
        whom = "none" if not per_hour else f"learners{', servers, coordinator' if also else ''}, {per_hour:g} an hour"
        lines.append(
            f"| {learners} | {whom} | {system} | {sum(len(run.kills) for run in of)} "
            f"| {', '.join(f'{p:.1%}' for p in parts)} | {', '.join(f'{p:.1%}' for p in apart)} "
            f"| {spread([k.survivors for k in kills])} | {spread([k.survivors - k.preparing for k in kills])} "
            f"| {spread([k.back for k in kills if k.back is not None])} "
            f"| {spread([k.preparing for k in kills if k.back is not None])} | {sum(run.resets for run in of)} "
            f"| {', '.join(f'{run.loss:.3f}' for run in of if run.loss is not None)} |"
        )
    return lines


def picture(runs: list[Run], path: Path) -> None:
    """Plot the number of samples in the model over time, one plot for each kind of storm."""
    import matplotlib.pyplot as plt

    kinds = sorted({(r.learners, r.per_hour, r.also) for r in runs if r.per_hour})
    rows = len({kind[0] for kind in kinds})  # one for each number of learners
    wide = -(-len(kinds) // rows)
    figure, axes = plt.subplots(rows, wide, figsize=(4.6 * wide, 3.4 * rows), squeeze=False)
    for axis in axes.flat[len(kinds) :]:
        axis.set_visible(False)
    colors = {"perdure": "#1f77b4", "perdure, preloaded": "#2ca02c", "torchft": "#d95f02"}
    for axis, kind in zip(axes.flat, kinds, strict=False):
        seen: set[str] = set()
        for run in runs:
            if (run.learners, run.per_hour, run.also) != kind:
                continue
            scale = run.of["sync_every"] * run.of["batch"] / 1000
            first = run.rounds(run.begun)
            points = [(t, n) for t, n in run.steps if run.begun <= t <= run.ended]
            label = run.by if run.by not in seen else None
            axis.step(
                [(t - run.begun) / 60 for t, _ in points],
                [(n - first) * scale for _, n in points],
                where="post",
                color=colors[run.by],
                label=label,
                linewidth=1.4,
            )
            if run.system == "perdure" and not seen:
                for kill in run.kills:
                    color = "#999999" if kill["learner"] is not None else "#c00000"
                    axis.axvline((kill["at"] - run.begun) / 60, color=color, linewidth=0.6, linestyle=":")
            seen.add(run.by)
        learners, per_hour, also = kind
        axis.set_title(
            f"{learners} learners, {per_hour:g} kills an hour{', of any process' if also else ''}", fontsize=10
        )
        axis.set_xlabel("minutes")
        axis.set_ylabel("thousand samples in the model")
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False, fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    plt.rcParams["svg.hashsalt"] = "perdure"
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    p = argparse.ArgumentParser(description="Tables and a picture of storms.")
    p.add_argument("files", type=Path, nargs="+")
    p.add_argument("--picture", type=Path, help="an SVG file to write")
    a = p.parse_args()
    runs = [Run(path) for path in a.files]
    print("\n".join(table(runs)))
    if a.picture is not None:
        picture(runs, a.picture)


if __name__ == "__main__":
    main()
