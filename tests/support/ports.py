"""Free ports for servers that need a fixed one, for example to restart on the same port."""

import contextlib
import random
import socket

CANDIDATES = range(20_000, 32_768)
"""Below the ephemeral ports of the kernel, so that no connection takes the port of a server that is restarting."""
MAX_TRIES = 100


def free_port() -> int:
    """A port on which no process listens now."""
    # Hypothesis seeds the default generator with the same value in all test processes.
    for port in random.SystemRandom().sample(CANDIDATES, MAX_TRIES):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"none of {MAX_TRIES} ports is free")
