"""Ports for what a test starts itself."""

import random
import socket


def free_port():
    """A port that nobody has, below those that connections take by themselves: who connects again and again while nobody listens
    could otherwise be given that very port, and meet nobody but itself there."""
    while True:
        with socket.socket() as one:
            try:
                port = random.randrange(15000, 32000)
                one.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
