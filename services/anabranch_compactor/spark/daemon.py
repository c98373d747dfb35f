"""What Spark's Python workers are forked from, with all that they need loaded already: a worker is there at once, where
it would else spend a second on its imports, for each of the several dozen that a run has."""

from __future__ import annotations

import gc

from pyspark import daemon

from anabranch.store.lake import log_files
from anabranch_compactor import decode, merge, prove, write
from anabranch_compactor.spark import log_source

LOADED = (decode, log_files, log_source, merge, prove, write)

if __name__ == "__main__":
    # A worker looks for garbage after each task: among what is loaded there is none, and going through it takes longer
    # than many a task, and copies the memory that workers share.
    gc.collect()
    gc.freeze()
    daemon.manager()
