"""The matrix of clients and features: `python -m tests.clients.matrix [CLIENT …]`.

It runs the programs of all clients, or of those that are named, against one `khala serve` with the demo model and a
scripted provider, and writes their results to `results.json`. It exits with 1 if a cell failed.
`infra/clients.py` makes `docs/clients.md` from the results.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.clients import pages
from tests.clients.rows import ROWS, Row
from tests.support import node_packages, python_packages
from tests.support.oidc.install import NODE
from tests.support.server import ROOT, Server, ended

HERE = Path(__file__).parent
CELLS = HERE / "cells"
RESULTS = HERE / "results.json"
PROVIDER_MODEL = "openai:local-model"
PROGRAM_TIMEOUT_SECONDS = 300
TOKENS_PER_DAY = 300_000
"""Of an account. The programs of a client use less; one account uses them up."""
RETRY_AFTER = re.compile(r"""(retryAfter[\\"': ]+)[0-9]+""")
"""The seconds until the end of the day, in the words of a client: different in each run."""

Cells = dict[str, dict[str, Any]]


@contextmanager
def provider() -> Iterator[str]:
    """The URL of a scripted provider, as a process that lives as long as this is open."""
    command = [sys.executable, "-m", "tests.support.providers", "--pace", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """`khala serve` with an embedded Postgres in this folder."""
    with provider() as url:
        env = {
            "KHALA_HOME": str(folder), "KHALA_MODEL": "demo", "KHALA_MODELS": PROVIDER_MODEL,
            "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "KHALA_STREAMS": "accounts",
            "KHALA_ORIGINS": "*", "KHALA_USER_TOKENS_PER_DAY": str(TOKENS_PER_DAY), "KHALA_GRACE_SECONDS": "1",
        }  # fmt: skip
        server = Server(folder / "log", env)
        with ended(server):
            server.start()
            yield server


def account(server: Server, name: str) -> str:
    """The token of a new account."""
    with httpx.Client(base_url=f"{server.url}/api", timeout=30) as http:
        body = {"email": f"{name}@example.com", "password": "en taro adun"}
        http.post("/auth/register", json=body).raise_for_status()
        return str(http.post("/tokens", json={"name": name}).raise_for_status().json()["token"])


def spent_account(server: Server) -> str:
    """The token of an account that has used up its tokens of the day."""
    token = account(server, "spent")
    body = {"model": "khala", "messages": [{"role": "user", "content": "/words=20000 /pace=0"}]}
    with httpx.Client(base_url=f"{server.url}/v1", headers={"Authorization": f"Bearer {token}"}, timeout=120) as http:
        for _ in range(TOKENS_PER_DAY // 20_000 + 1):
            if http.post("/chat/completions", json=body).status_code == httpx.codes.TOO_MANY_REQUESTS:
                return token
    raise AssertionError("the account's limit has no effect")


def row_result(row: Row, server: Server, spent: str) -> Cells:
    """The results of one client's program, by feature."""
    env = {
        "KHALA_URL": server.url, "KHALA_TOKEN": account(server, row.id), "KHALA_SPENT_TOKEN": spent,
        "KHALA_PROVIDER_MODEL": PROVIDER_MODEL, "KHALA_CLIENT": row.id,
        "KHALA_CELLS": str(CELLS / "cells.mjs"), "PYTHONPATH": str(CELLS),
    }  # fmt: skip
    if row.kind == "page":
        return pages.cells(HERE / row.folder / row.program, env)
    return dict(json.loads(run(command(row), env)))


def command(row: Row) -> list[str]:
    """The program of a client that needs no page, in an environment of its own."""
    folder = HERE / row.folder
    if row.kind == "python":
        return [str(python_packages.interpreter(folder / "requirements.txt")), str(folder / row.program)]
    return [str(NODE), str(node_packages.install(folder / row.program))]


def run(words: list[str], env: Mapping[str, str]) -> str:
    """The output of a program, in a new process group that ends with it."""
    with tempfile.TemporaryDirectory(prefix="khala-client-") as home:
        whole_env = {**os.environ, **env, "HOME": home, "LLM_USER_PATH": home, "BIN": str(Path(words[0]).parent)}
        whole_env.pop("PYTHONDONTWRITEBYTECODE", None)  # without compiled code, each start takes many seconds
        process = subprocess.Popen(
            words, env=whole_env, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            output, errors = process.communicate(timeout=PROGRAM_TIMEOUT_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert process.returncode == 0, errors
    result = output.splitlines()[-1]
    if '"failed"' in result:
        sys.stderr.write(errors)
    return result


def version(row: Row) -> str:
    """The pinned version of the client's package."""
    folder = HERE / row.folder
    if row.kind == "python":
        found = re.search(
            rf"^{re.escape(row.package)}==([^ ;\n]+)", (folder / "requirements.txt").read_text(), re.MULTILINE
        )
        assert found, row.package
        return found[1]
    return str(json.loads((folder / "package.json").read_text())["dependencies"][row.package])


def record(row: Row, server: Server, spent: str) -> int:
    """Run one client's program, and write its results. Returns the number of cells that failed."""
    began = time.monotonic()
    try:
        cells = row_result(row, server, spent)
    except (AssertionError, subprocess.SubprocessError) as error:
        print(f"{row.id}: the program failed: {error}", flush=True)
        return 1
    cells = json.loads(RETRY_AFTER.sub(r"\g<1>3600", json.dumps(cells)))
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[row.id] = {"version": version(row), "cells": cells}
    ordered = {row.id: results[row.id] for row in ROWS if row.id in results}
    RESULTS.write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    failed = [feature for feature, cell in cells.items() if cell["state"] == "failed"]
    counts = Counter(cell["state"] for cell in cells.values())
    print(f"{row.id}: {dict(counts)}, {time.monotonic() - began:.0f} s", *failed, flush=True)
    return len(failed)


def main() -> int:
    """Run the programs of the named clients, or of all. Returns the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server and the programs end, too
    unknown = set(sys.argv[1:]) - {row.id for row in ROWS}
    if unknown:
        sys.exit(f"no such client: {', '.join(sorted(unknown))}")
    chosen = [row for row in ROWS if not sys.argv[1:] or row.id in sys.argv[1:]]
    with (
        tempfile.TemporaryDirectory(prefix="khala-clients-", ignore_cleanup_errors=True) as folder,
        serving(Path(folder)) as server,
    ):
        spent = spent_account(server)
        failed = sum(record(row, server, spent) for row in chosen)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
