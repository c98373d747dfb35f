"""Become a program of the control plane that the kernel kills when its parent is gone, however that ended.

Run as a script in a fresh interpreter, never imported: `begin.py PARENT_PID PROGRAM ARGUMENT…`. Nothing that these
programs hold is wanted afterwards, so they get no time: each would wait for the other to answer. Elsewhere than on
Linux a run that was killed leaves them behind. Exit status 70 when the parent is gone already.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PARENT_IS_GONE = 70

if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(sys.argv[1]):
            sys.exit(PARENT_IS_GONE)
    os.execv(sys.argv[2], sys.argv[2:])
