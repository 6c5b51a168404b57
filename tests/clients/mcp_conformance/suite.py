"""Runs the published conformance tests of MCP against Khala, as a server and as a client, and compares the results.

`expected.json` has the scenarios of each protocol version: those that pass, and those that fail with the reason. A
scenario that the version does not require, or requires in addition, is a difference, too.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from tests.clients.matrix import account
from tests.support import node_packages
from tests.support.oidc.install import NODE
from tests.support.server import ROOT, Server, ended

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"
PROGRAM = Path("node_modules/@modelcontextprotocol/conformance/dist/index.js")
CLIENT = f"{sys.executable} -m tests.clients.mcp_conformance.client"
APP = "tests.clients.mcp_conformance.app"
LISTED = re.compile(r"^ +- (\S+)$", re.MULTILINE)
OAUTH = "auth/"
"""Begins the names of the client's scenarios of OAuth. They need a person in a browser: `tests/integration/connections`
has the tests of that."""
SCENARIO_TIMEOUT_SECONDS = 120
CLIENT_TIMEOUT_SECONDS = 60
MAX_REASON_CHARACTERS = 300

Side: TypeAlias = Literal["server", "client"]


class ExpectedResults(msgspec.Struct, frozen=True, kw_only=True):
    """The expected results of Khala on one side, with one protocol version. `fails` has the reason of each failure."""

    side: Side
    version: str
    passes: tuple[str, ...] = ()
    fails: dict[str, str] = {}

    @property
    def title(self) -> str:
        """The side and the version, as in `server 2025-11-25`."""
        return f"{self.side} {self.version}"


class ScenarioResult(msgspec.Struct, frozen=True):
    """Whether a scenario passed, or why not."""

    passed: bool
    reason: str = ""


def expected() -> list[ExpectedResults]:
    """The expected results of both sides and all versions."""
    return msgspec.json.decode(EXPECTED.read_bytes(), type=list[ExpectedResults])


def main(pattern: str) -> int:
    """Run the scenarios whose names contain the pattern, or all. Returns the exit status."""
    differences: list[str] = []
    with tempfile.TemporaryDirectory(prefix="khala-mcp-conformance-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        for part in expected():
            results = dict(_run(part, pattern, folder))
            passed = sum(result.passed for result in results.values())
            print(f"{part.title}: {passed} of {len(results)} scenarios pass", flush=True)
            differences += [f"{part.title}: {line}" for line in _differences(part, results, pattern)]
    for line in differences:
        print(line, flush=True)
    return 1 if differences else 0


def _differences(part: ExpectedResults, results: Mapping[str, ScenarioResult], pattern: str) -> Iterator[str]:
    for name, result in results.items():
        if result.passed and name not in part.passes:
            yield f"{name} passes, which is not expected"
        if not result.passed and name not in part.fails:
            yield f"{name} fails: {result.reason}"
    for name in (*part.passes, *part.fails):
        if pattern in name and name not in results:
            yield f"{name} is not required"


def _run(part: ExpectedResults, pattern: str, folder: Path) -> Iterator[tuple[str, ScenarioResult]]:
    """The results of the required scenarios whose names contain the pattern."""
    program = node_packages.installed_packages(HERE) / PROGRAM
    listed = _node(program, {}, "list", "--requirements", part.version).stdout
    _, _, required = listed.partition(f"{part.side.capitalize()} scenarios")
    listed_names = LISTED.findall(required.partition("\n\n")[0])
    names = [name for name in listed_names if pattern in name and not name.startswith(OAUTH)]
    output = folder / part.title
    with _examined(part, folder) as (arguments, env):
        words = [part.side, *arguments, "--output-dir", str(output)]
        if part.side == "server":
            # All at once, because a start of the program takes a second.
            _node(program, env, *words, "--requirements", part.version)
        for name in names:
            status = 0
            if part.side == "client":
                status = _node(program, env, *words, "--scenario", name, "--spec-version", part.version).returncode
            yield name, _result(output.glob(f"{'server-' * (part.side == 'server')}{name}-2*/checks.json"), status)


@contextmanager
def _examined(part: ExpectedResults, folder: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The arguments and the environment of the tests: with a running server, or with the program of the client."""
    home = {"KHALA_HOME": str(folder / "home"), "KHALA_MODEL": "demo"}
    if part.side == "client":
        yield ["--command", CLIENT, "--timeout", str(CLIENT_TIMEOUT_SECONDS * 1000)], home | {"PYTHONPATH": str(ROOT)}
        return
    server = Server(folder / "server.log", home | {"KHALA_APP": APP})
    with ended(server):
        server.start()
        token = account(server, f"server-{part.version}")
        preload = f"--import={(HERE / 'authorize.mjs').as_uri()}"
        yield ["--url", f"{server.url}/mcp"], {"KHALA_URL": server.url, "KHALA_TOKEN": token, "NODE_OPTIONS": preload}


def _node(program: Path, env: Mapping[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(NODE), str(program), *words], cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True,
        timeout=SCENARIO_TIMEOUT_SECONDS, check=False,
    )  # fmt: skip


def _result(files: Iterable[Path], status: int) -> ScenarioResult:
    """The result of a scenario whose program ended with this status. One without a successful check has not passed."""
    checks: list[dict[str, Any]] = [check for file in files for check in json.loads(file.read_text(encoding="utf-8"))]
    states = {check["status"] for check in checks}
    if status == 0 and "SUCCESS" in states and "FAILURE" not in states:
        return ScenarioResult(passed=True)
    failed = [check for check in checks if check["status"] in ("FAILURE", "WARNING")]
    reasons = [f"{check['id']}: {check.get('errorMessage') or check.get('description', '')}" for check in failed]
    reason = " ".join("; ".join(reasons).split())[:MAX_REASON_CHARACTERS]
    return ScenarioResult(passed=False, reason=reason or f"the program ended with {status}, and no check failed")
