"""The conformance tests of the Durable Streams protocol, unmodified."""

import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import msgspec

from tests.support import node_packages
from tests.support.oidc.install import NODE
from tests.support.server import Server

HERE = Path(__file__).parent / "durable-streams"
LONG_POLL_SECONDS = 2
SUITE_TIMEOUT_SECONDS = 600


class ConformanceReport(msgspec.Struct, frozen=True):
    """The number of tests that passed, and the names and messages of those that failed."""

    passed: int
    failed: list[str]


def run_suite(url: str, *, only: str = "") -> ConformanceReport:
    """Run the tests whose names match the pattern `only` against the server; without a pattern, all."""
    config, program = (node_packages.install(HERE / name) for name in ("vitest.config.mjs", "conformance.test.mjs"))
    folder = program.parent
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary) / "report.json"
        command = [
            str(NODE), str(folder / "node_modules" / "vitest" / "vitest.mjs"), "run", program.name,
            "--config", config.name, "--reporter=json", f"--outputFile={output}", *(["-t", only] if only else []),
        ]  # fmt: skip
        env = {**os.environ, "KHALA_URL": url, "KHALA_LONG_POLL_MS": str(LONG_POLL_SECONDS * 1000), "CI": "1"}
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=SUITE_TIMEOUT_SECONDS, check=False
        )
        assert output.exists(), done.stdout + done.stderr
        results = [each for file in json.loads(output.read_text())["testResults"] for each in file["assertionResults"]]
    failed = [f"{each['fullName']}: {each['failureMessages'][:1]}" for each in results if each["status"] == "failed"]
    return ConformanceReport(sum(each["status"] == "passed" for each in results), failed)


def main(only: str) -> int:
    """Run the tests whose names match the pattern, or all, on an embedded Postgres. Returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="khala-conformance-", ignore_cleanup_errors=True) as folder:
        env = {
            "KHALA_HOME": folder, "KHALA_STREAMS": "open", "KHALA_ORIGINS": "*", "KHALA_STREAMS_PER_ACCOUNT": "100000",
            "KHALA_STREAMS_LONG_POLL_SECONDS": str(LONG_POLL_SECONDS), "KHALA_MODEL": "demo",
            "KHALA_FETCH_ALLOW": "127.0.0.0/8",
        }  # fmt: skip
        server = Server(Path(folder) / "log", env)
        server.start()
        try:
            report = run_suite(server.url, only=only)
        finally:
            server.kill(signal.SIGTERM)
    print(*report.failed, f"{report.passed} passed, {len(report.failed)} failed", sep="\n")
    return 1 if report.failed or not report.passed else 0
