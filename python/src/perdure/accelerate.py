"""Import this module before creating an ``accelerate.Accelerator``, so that each slot is a single process.

In a process started by ``perdure launch`` or by a host, the import removes RANK and similar variables from the
environment. Otherwise accelerate would form a process group. ``job.share`` contains the rank.
"""

from . import _nested

_nested.hide_ranks()
