"""Become postgres: give up root, ask the kernel to end us with our parent, then exec.

Run as a script by `anabranch.embedded.postgres` in a fresh interpreter, never imported: code between fork
and exec must not run in a process that has threads.

    exec_postgres.py PARENT_PID UID GID PROGRAM ARGUMENT…

UID and GID are -1 where the user stays as it is. The working folder was set by the parent while it could
still enter it. Exit status 70 when the parent is gone already.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PARENT_IS_GONE = 70

if __name__ == "__main__":
    parent, uid, gid = (int(text) for text in sys.argv[1:4])
    if uid != -1:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    if sys.platform == "linux":
        # After the change of user, which clears it. SIGINT is Postgres's fast shutdown.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGINT)
        if os.getppid() != parent:
            sys.exit(PARENT_IS_GONE)
    os.execv(sys.argv[4], sys.argv[4:])
