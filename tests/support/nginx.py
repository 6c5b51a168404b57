"""nginx with the configuration of `infra`, on free ports and with its files in a folder."""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.ports import free_port
from tests.support.required_programs import program, wait_for_port
from tests.support.server import ROOT

SHIPPED = ROOT / "infra" / "nginx.conf"
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
"""Temporary files that nginx otherwise stores in folders of the system."""


class Nginx:
    """A running nginx."""

    def __init__(self, port: int, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.socket_url = f"ws://127.0.0.1:{port}/api/ws"
        self.access = folder / "access.log"
        self.errors = folder / "error.log"


def rendered(port: int, upstreams: Sequence[int], folder: Path) -> str:
    """The shipped configuration with other addresses, and with files in this folder."""
    servers = "\n".join(f"        server 127.0.0.1:{one} max_fails=0;" for one in upstreams)
    temporary_paths = "\n".join(f"    {name}_temp_path {folder}/{name};" for name in TEMPORARY)
    text = SHIPPED.read_text()
    for pattern, replacement in (
        (r"^        listen 80;$", f"        listen 127.0.0.1:{port};"),
        (r"^( +server web-\d:8000 max_fails=0;\n)+", servers + "\n"),
        (r"^error_log /dev/stderr warn;$", f"error_log {folder}/error.log warn;"),
        (r"/dev/stdout", f"{folder}/access.log"),
        (r"^pid /run/nginx.pid;$", f"pid {folder}/pid;\ndaemon off;"),
        (r"^worker_rlimit_nofile 65536;$", ""),
        (r"^http \{$", f"http {{\n{temporary_paths}"),
    ):
        text, found = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        assert found == 1, f"{pattern} is in {SHIPPED.name} {found} times"
    # The files belong to root, so the workers must run as root, too.
    return f"user root;\n{text}" if os.geteuid() == 0 else text


@contextlib.contextmanager
def nginx(upstreams: Sequence[int], folder: Path) -> Iterator[Nginx]:
    """Nginx before these ports, for as long as this is open."""
    port = free_port()
    made, file = Nginx(port, folder), folder / "nginx.conf"
    file.write_text(rendered(port, upstreams, folder))
    with made.errors.open("ab") as log:
        process = subprocess.Popen([program("nginx"), "-c", str(file), "-e", str(made.errors)], stdout=log, stderr=log)
    try:
        wait_for_port(process, port, made.errors)
        yield made
    finally:
        process.terminate()
        process.wait(10)
