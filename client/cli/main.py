"""Entry point of the ``rondel`` command: as little as possible before Ctrl-C is in good hands.

The commands bring in much, and an interrupt in the middle of an import may surface as any error at all.
So until a command runs, and after it has, Ctrl-C ends the process at once: there is nothing to clean up.
"""

import os
import signal

INTERRUPTED = 130
"""What a shell expects of a program that Ctrl-C has ended."""


def _end_at_once(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)


def main() -> None:
    """Run the command line and exit with its code."""
    # Left alone if it is ignored (``nohup``, a background job of a script).
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    from rondel.client.cli.app import run

    run()
