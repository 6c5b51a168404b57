"""`@khala/client` and `@khala/react` as they are published: packed, installed elsewhere, and used there."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.npm_projects import CLIENTS, NODE, NPM, environment
from tests.support import postgres
from tests.support.server import ROOT, Server, ended
from tests.system.browser import words

pytestmark = pytest.mark.timeout(180)

PROGRAMS = Path(__file__).parent / "typescript"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside the repository, in which the tarballs of both packages are installed by npm."""
    tarballs, folder = tmp_path_factory.mktemp("tarballs"), tmp_path_factory.mktemp("consumer")
    pack = [sys.executable, str(ROOT / "infra" / "typescript_clients.py"), "pack", str(tarballs)]
    subprocess.run(pack, check=True, timeout=100)
    (folder / "package.json").write_text('{"name": "consumer", "private": true, "type": "module"}')
    files = sorted(map(str, tarballs.glob("*.tgz")))
    assert len(files) == 2
    # What the packages need besides each other is linked below, so that no registry is asked.
    install = ["install", "--offline", "--legacy-peer-deps", "--ignore-scripts", "--no-audit", "--no-fund", *files]
    done = subprocess.run(
        [str(NODE), str(NPM), *install], cwd=folder, env=environment(), capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name in ("react", "react-dom", "@types", "typescript", "ai", "@ai-sdk", "vite"):
        (folder / "node_modules" / name).symlink_to(CLIENTS / "node_modules" / name)
    for program in PROGRAMS.iterdir():
        (folder / program.name).write_bytes(program.read_bytes())
    return folder


@pytest.fixture(scope="module")
def server(postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`khala serve` with a short lease, so that another executor soon takes over the run of a killed one."""
    settings = {"KHALA_MODEL": "demo", "KHALA_LEASE_SECONDS": "2", "KHALA_GRACE_SECONDS": "1"}
    with postgres.sync_database(postgres_url, template) as url:
        process = Server(tmp_path_factory.mktemp("server") / "server.log", {"DATABASE_URL": url} | settings)
        with ended(process):
            process.start()
            yield process


@contextlib.contextmanager
def program(installed: Path, server: Server, name: str) -> Iterator["subprocess.Popen[str]"]:
    """A program of the consumer, which writes lines of JSON. It is killed if it has not ended by itself."""
    env = environment() | {"KHALA_URL": server.url}
    with subprocess.Popen([str(NODE), name], cwd=installed, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def next_line(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout
    line = process.stdout.readline()
    assert line, "the program has ended; its error is above"
    return dict(json.loads(line))


def read_until(process: "subprocess.Popen[str]", text: str, *names: str) -> dict[str, str]:
    """Read lines until the texts of all these names have `text`; returns the texts."""
    texts = dict.fromkeys(names, "")
    while not all(text in one for one in texts.values()):
        line = next_line(process)
        texts[line["name"]] = line["text"]
    return texts


def test_answers_are_exact_when_the_server_is_killed_and_restarted(installed: Path, server: Server) -> None:
    with program(installed, server, "killed.mjs") as client, program(installed, server, "transport.mjs") as transport:
        read_until(client, "word20 ", "run")
        read_until(transport, "word20 ", "sent", "resumed")
        server.restart()
        results = []
        for process in (client, transport):
            while "done" not in (line := next_line(process)):
                pass
            assert process.wait(20) == 0
            results.append(line["done"])
    run, chats = results
    assert run["joined"] == run["text"]
    texts = (run["text"], chats["sent"]["text"], chats["resumed"]["text"])
    assert [text.split() for text in texts] == [words(150).split()] * 3
    assert min(run["pieces"], chats["sent"]["texts"], chats["resumed"]["texts"]) > 10, "the text came in pieces"
    assert run["status"] == "done"
    assert chats["stopped"] == {"ended": "AbortError", "reason": "canceled"}
    assert chats["none"] is None
    assert chats["loaded"] == chats["sent"]["id"]
    assert chats["approval"] == {
        "states": ["approval-requested", "output-available"], "text": "Over.", "isSame": True,
    }  # fmt: skip
