"""Loads deploy/skypilot with SkyPilot itself, as `sky jobs launch` does before it starts machines."""

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

from sky.dag import DagExecution
from sky.utils import dag_utils

SOURCE = Path(sys.argv[1])
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    for role in ("coordinator", "server", "worker"):
        (folder / "keys" / role).mkdir(parents=True)
    (folder / "wheels").mkdir()
    (folder / "train.py").touch()
    for file in ("job.yaml", "perdure.yaml"):
        shutil.copy(SOURCE / file, folder)
    with contextlib.chdir(folder):
        assert dag_utils.is_job_group_yaml("perdure.yaml")
        dag = dag_utils.load_dag_from_yaml("perdure.yaml")
        for task in dag.tasks:
            task.expand_and_validate_workdir()
            task.expand_and_validate_file_mounts()
assert dag.execution == DagExecution.PARALLEL
assert dag.primary_tasks == ["servers"]
found = {task.name: (task.num_nodes, [of.use_spot for of in task.resources]) for task in dag.tasks}
assert found == {"servers": (3, [False]), "learner-0": (1, [True]), "learner-1": (1, [True])}, found
print(f"SkyPilot loads {SOURCE}: {found}")
