"""A server on one core that notes when kernels begin.

``pinned_server.py CORE`` prints where it listens, and at its end how many kernels began after the deadline of
their call. That is counted twice: by the server (``Scheduler.late_starts``), and here, right before the
native call, by what is at hand then.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch


def main(core: int) -> None:
    """Serves until SIGTERM."""
    os.sched_setaffinity(0, {core})  # before the kernels count the cores that they have
    from rondel.decoder.batch import run_steps
    from rondel.server import stepping
    from rondel.server.app import Server
    from rondel.server.config import ServerConfig
    from rondel.server.process import serve

    servers: list[Server] = []
    begun = late = 0

    def noticed(run_steps: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(steps: Any) -> Any:
            nonlocal begun, late
            now = time.monotonic()
            batch = servers[0].scheduler._worker.at_hand
            # Of a batch only those whose turn has come are among the steps; each call here has one item.
            wanted = [] if batch is None else [each for each in batch.operations if not each.stopped]
            begun += len(steps)
            late += sum(each.expired(now) for each in wanted)
            return run_steps(steps)

        return run

    def ready(server: Server) -> None:
        servers.append(server)
        patch.object(stepping, "run_steps", noticed(run_steps)).start()
        print(json.dumps({"address": server.address}), flush=True)

    config = ServerConfig(port=0, budget_bytes=1 << 30, drain_seconds=1.0)
    serve(config, on_ready=ready)
    counts = {"kernels": begun, "late_kernels": late, "late_starts": servers[0].scheduler.late_starts}
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
