"""The process from which Spark's Python workers are forked. It has loaded all that they need: a worker starts at once,
where it would else spend a second on its imports, for each of the several dozen that a run has."""

from __future__ import annotations

import gc

from pyspark import daemon

from anabranch.store.lake import log_files
from anabranch_compactor import decode, merge, prove, write
from anabranch_compactor.spark import log_source

LOADED = (decode, log_files, log_source, merge, prove, write)

if __name__ == "__main__":
    # A worker collects garbage after each task: the loaded modules have none, and going through them takes longer than
    # many a task, and copies the memory that workers share.
    gc.collect()
    gc.freeze()
    daemon.manager()
