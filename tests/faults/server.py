"""A process that runs commands of tarry in forked children, in which one call on a file fails.

Reads a job from each line of standard input: {"argv", "cwd", "arm": arguments of faults_arm, "stdout", "stderr"}, and
answers with the exit code. tarry and what it imports late are loaded once, before the first fork.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tempfile
from typing import Any

_LONGEST = 120  # seconds of a job, which takes a fraction of one


def main() -> None:
    """Load tarry and the library, then answer jobs until standard input ends."""
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    with tempfile.TemporaryDirectory() as folder:
        for argv in json.loads(sys.argv[1]):
            _call([word.replace("FOLDER", folder) for word in argv])
    sys.__stdout__.write("ready\n")
    sys.__stdout__.flush()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _child(library, json.loads(line))
        _, status = os.waitpid(pid, 0)
        sys.__stdout__.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.__stdout__.flush()


def _child(library: ctypes.CDLL, job: dict[str, Any]) -> None:
    signal.alarm(_LONGEST)
    os.chdir(job["cwd"])
    for fd, path in ((0, os.devnull), (1, job["stdout"]), (2, job["stderr"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666), fd)
    root, log, op, path, number, how = job["arm"]
    code = 99
    try:
        assert library.faults_arm(root.encode(), log.encode(), op.encode(), path.encode(), number, how) == 0
        code = _call(job["argv"])
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _call(argv: list[str]) -> int:
    """Run a command in this process and return its exit code."""
    from tarry.cli.app import main as tarry

    sys.argv = ["tarry", *argv]
    try:
        tarry()
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else int(e.code is not None)
    return 0


if __name__ == "__main__":
    main()
