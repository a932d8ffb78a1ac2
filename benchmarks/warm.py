"""ClientApp processes that need not import torch: forked from a process that has.

A SuperNode starts `flwr-clientapp` for every message, which is 3 s of processor time for imports alone. Four nodes
on two cores would mostly import. Here `flwr-clientapp` is a script of a few lines that asks a resident process to fork;
the fork runs Flower's own `flwr-clientapp`, unchanged, and ends with its message.

    python benchmarks/warm.py SOCKET        # the resident process, in the node's network
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

SHIM = """#!{python} -ISE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as found:
    found.connect(os.environ["LASG_WARM"])
    found.sendall(json.dumps(sys.argv).encode())
    found.shutdown(socket.SHUT_WR)
    found.recv(1)
"""


def shim(folder: Path) -> Path:
    """Write the script that stands in for `flwr-clientapp`; return its folder, which goes first on PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "flwr-clientapp"
    script.write_text(SHIM.format(python=sys.executable))
    script.chmod(0o755)
    return folder


def _run(main: Callable[[], None]) -> NoReturn:
    """Run a command, and end at once: to take the interpreter down in order is a second of processor time."""
    code = 1
    try:
        main()
    except SystemExit as end:  # Flower has done by then what it does at the end
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve(path: Path) -> None:
    """Import what a ClientApp needs, then fork one for everyone who asks."""
    import httpcore  # noqa: F401
    from flwr.supernode.cli import flwr_clientapp

    import lasg.flower.apps
    import lasg.problems.models  # noqa: F401

    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(16)
        while True:
            asking, _ = listening.accept()
            with asking, asking.makefile("rb") as said:
                argv = json.loads(said.read())
                if os.fork() == 0:
                    listening.close()
                    asking.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    sys.argv = argv
                    _run(flwr_clientapp)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
