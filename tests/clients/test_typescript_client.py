"""`@khala/client` and `@khala/react` as they are published: packed, installed elsewhere, and used there."""

import contextlib
import gzip
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.npm_projects import CLIENTS, NODE, environment
from tests.support.server import ROOT, Server
from tests.system.browser import words
from tests.system.test_docs_examples import addresses_of, files, write_files

pytestmark = pytest.mark.timeout(180)

GUIDES = [ROOT / "docs" / "how-to" / name for name in ("typescript-client.md", "react.md")]


@contextlib.contextmanager
def program(installed: Path, server: Server, name: str, **env: str) -> Iterator["subprocess.Popen[str]"]:
    """A program of the consumer, which writes lines of JSON. It is killed if it has not ended by itself."""
    env = environment() | {"KHALA_URL": server.url} | env
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


@pytest.mark.parametrize(
    ("resolution", "programs", "libraries"),
    [
        ("bundler", "consumer.tsx chat.tsx page.tsx transport.ts", "es2023,dom"),
        ("node16", "consumer.tsx", "es2023,dom"),
        ("node16", "node.ts", "es2023"),
    ],
)
def test_a_strict_consumer_compiles(installed: Path, resolution: str, programs: str, libraries: str) -> None:
    for page in GUIDES:
        write_files(page, installed, {})
    module = "esnext" if resolution == "bundler" else "node16"
    options = ["--strict", "--noEmit", "--exactOptionalPropertyTypes", "--target", "es2022", "--jsx", "react-jsx"]
    options += ["--module", module, "--moduleResolution", resolution, "--lib", libraries, "--types", "node"]
    # All declarations are checked, except where those of `ai` are among them.
    options += ["--skipLibCheck", str("consumer.tsx" in programs).lower()]
    done = subprocess.run(
        [str(NODE), "node_modules/typescript/bin/tsc", *options, *programs.split()],
        cwd=installed, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_client_does_what_its_readme_says(installed: Path, server: Server) -> None:
    with httpx.Client(base_url=f"{server.url}/api") as http:
        person = {"email": "ada@example.com", "password": "correct horse battery", "name": "Ada"}
        http.post("/auth/register", json=person).raise_for_status()
        token = http.post("/tokens", json={"name": "client"}).raise_for_status().json()["token"]
    with program(installed, server, "features.mjs", KHALA_TOKEN=token) as process:
        results = next_line(process)["done"]
        assert process.wait(20) == 0
    api_error = {"name": "ApiError"}
    assert results == {
        "retried": {"same": True, "text": "En taro Adun"},
        "conflict": api_error | {"code": "conflict", "status": 409},
        "list": ["Features"],
        "queued": [[True, "sending"], [True, "queued"]],
        "answered": ["/echo One", "One", "/echo Two", "Two"],
        "ids": True,
        "initial": True,
        "after": [True],
        "present": ["one", "two"],
        "file": {"name": "hello.txt", "text": "hello"},
        "canceled": "stopped",
        "failed": {"status": "failed", "code": "connection_lost"},
        "approval": {
            "tool": "delete_file",
            "text": "Over.",
            "again": api_error | {"code": "already_decided", "status": 409},
        },
        "tokens": [None, "khala_old"],
        "threads": [["Of an account", "owner"]],
        "plan": ["idle", "running", ["completed"]],
        "memories": ["Ada likes tea."],
        "models": "demo",
        "me": "Ada",
        "stranger": api_error | {"code": "forbidden", "status": 403},
        "refused": {"name": "SubscriptionRefusedError", "code": "forbidden"},
        "wrong": {"name": "SubscriptionRefusedError", "code": "forbidden"},
        "classes": [True, True],
        "aborted": {"name": "AbortError", "code": 20},
        "closed": {"name": "AbortError", "code": 20},
    }


@pytest.mark.parametrize(("name", "shown"), [("ask.mjs", "word20\ndone, 20 tokens"), ("show.mjs", "'Two'")])
def test_the_guides_programs_run_and_compile(installed: Path, server: Server, name: str, shown: str) -> None:
    write_files(GUIDES[0], installed, addresses_of(server))
    done = subprocess.run(
        [str(NODE), name], cwd=installed, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout


def test_the_readme_begins_with_the_guides_program() -> None:
    assert f"```js\n{files(GUIDES[0])['ask.mjs']}```" in (CLIENTS / "client" / "README.md").read_text()


def test_the_client_is_small(installed: Path) -> None:
    """Bundled with all that `Khala` needs, as a page has it."""
    (installed / "entry.js").write_text('export { Khala } from "@khala/client";')
    (installed / "build.mjs").write_text(
        'import { build } from "vite";\n'
        'const lib = { entry: "entry.js", formats: ["es"] };\n'
        'const [{ output }] = await build({ configFile: false, logLevel: "error", build: { write: false, lib } });\n'
        "process.stdout.write(output[0].code);\n"
    )
    command = [str(NODE), "build.mjs"]
    built = subprocess.run(command, cwd=installed, env=environment(), stdout=subprocess.PIPE, timeout=60, check=True)
    assert 5_000 < len(gzip.compress(built.stdout, 9)) < 18_000
