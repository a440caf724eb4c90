"""Starts a job with a dashboard and writes the output of a notebook cell that shows it. Ends with the file's deletion.

python notebook.py RUN HTML
"""

import sys
import time
from pathlib import Path

import perdure

run, file = Path(sys.argv[1]), Path(sys.argv[2])
with perdure.start(recovery="chain:2", out=run, args=["--dashboard", "--quiet"]) as job:
    table = job.table("w", rows=100, dim=4, rule=perdure.Add())
    part = file.with_suffix(".part")
    part.write_text(job.dashboard(height=800)._repr_html_() + "\n")
    part.rename(file)

    def step(_: int) -> None:
        table.get([0])
        table.inc([0], [[1, 1, 1, 1]])
        time.sleep(0.02)
        if not file.exists():
            job.end_job()

    job.run(step)
