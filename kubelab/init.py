"""Process 1 of a machine: buries orphans, nothing else. When it dies, the kernel ends the whole machine.

Run as a file, with the interpreter alone: it must not depend on anything that could be slow to import.
"""

import os
import signal
import sys


def main() -> None:
    """Make the machine's own file systems, then wait for children for ever."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    print("machine is there", flush=True)  # the starter waits for this line
    sys.stdout.close()
    while True:
        signal.sigwait({signal.SIGCHLD})
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break


if __name__ == "__main__":
    main()
