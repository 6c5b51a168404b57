"""Ports for servers that are told theirs, as those that are to come back on the same one."""

import contextlib
import random
import socket

SERVED = range(20_000, 32_768)
"""Below those that the kernel gives to connections: else somebody's connection may have the port of a server that is
just away, which then can't come back."""
TRIES = 100


def free_port() -> int:
    """A port that nobody listens on now."""
    # Hypothesis seeds the usual generator, in all test processes alike.
    for port in random.SystemRandom().sample(SERVED, TRIES):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"of {TRIES} ports none is free")
