"""Checks a worker, in any language, against the executor protocol: `python -m khala_client.conformance COMMAND…`.

It plays the server: it starts the worker's command with the variables `KHALA_SERVER`, `KHALA_TOKEN` and `KHALA_AGENT`,
gives it runs, drops answers on purpose, cancels, takes leases away, and prints a table. The exit status is 1 if a check
failed. The worker's agent must answer two prompts: `count N` with the text `1 2 … N `, written in N pieces; and `wait`
with the text `waiting `, after which it waits until it is cancelled.

A worker that stores and reads blobs answers two more: `store N` by a tool call whose result is the text `1 2 … N ` in a
blob, and the text `stored`; and `read` with the content of the file of the message. The checks of blobs are skipped if
its run of `store N` fails.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from khala_client.conformance_server import AGENT, LEASE_SECONDS, TIMEOUT_SECONDS, TOKEN, FakeRun, FakeServer

STORED_NUMBERS = 2_000
QUESTION = "Who takes this file?"


def counted(number: int) -> str:
    """The answer to `count NUMBER`."""
    return "".join(f"{one} " for one in range(1, number + 1))


class Conformance:
    """The checks of one worker."""

    def __init__(self, command: list[str], *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.server = FakeServer(timeout_seconds)
        self.results: list[tuple[str, str]] = []
        """The name of each check, and its problem: empty if it passed or was skipped."""
        self.skipped: list[str] = []
        """The names of the checks of what the worker does not do."""
        self._command = command
        self._worker: subprocess.Popen[bytes] | None = None

    def run(self) -> bool:
        """Run all checks. Returns whether all have passed."""
        with self.server.serving():
            environment = {**os.environ, "KHALA_SERVER": self.server.url, "KHALA_TOKEN": TOKEN, "KHALA_AGENT": AGENT}
            worker = self._worker = subprocess.Popen(self._command, env=environment)  # noqa: S603  # the command to check
            try:
                self._check("claims runs of its agent, and waits for them", self._claims)
                self._check("writes consecutive parts and the end", lambda: self._counts(""))
                self._check("repeats a claim whose answer was lost", self._lost_claim)
                self._check("repeats parts whose answer was lost", lambda: self._counts("parts"))
                self._check("repeats parts after 503", lambda: self._counts("unavailable"))
                self._check("repeats an end whose answer was lost", lambda: self._counts("finish"))
                self._check("sends heartbeats twice in a lease", self._heartbeats)
                self._check("ends a run that is cancelled", self._cancel)
                self._check("ends a run that was cancelled before the claim", self._cancelled_before)
                self._check("stops writing when its lease is lost", self._lease_loss)
                self._check("goes on where a former worker ended", self._take_over)
                self._check("executes runs side by side", self._side_by_side)
                self._check("stores a large output, and refers to it", lambda: self._stores(""))
                self._check("repeats an upload whose answer was lost", lambda: self._stores("blobs"))
                self._check("reads a file of its run", self._reads)
                self._check("stops on SIGTERM, and gives its run back", lambda: self._stop(worker))
                self._worker = None
                self._check("sends well-formed requests", lambda: "; ".join(self.server.problems))
            finally:
                worker.kill()
                worker.wait()
        return not any(problem for _, problem in self.results)

    def table(self) -> str:
        """The results, one line for each check."""
        lines = []
        for name, problem in self.results:
            mark = "FAIL" if problem else "skip" if name in self.skipped else "ok  "
            lines.append(f"{mark}  {name}{f': {problem}' if problem else ''}")
        return "\n".join(lines)

    def _check(self, name: str, check: Callable[[], str | None]) -> None:
        code = None if self._worker is None else self._worker.poll()
        problem = check() if code is None else f"the worker has exited with {code}"
        self.results.append((name, problem or ""))
        if problem is None:
            self.skipped.append(name)

    def _claims(self) -> str:
        if not self.server.wait(lambda: self.server.claim_bodies):
            return "no claim"
        body = self.server.claim_bodies[0]
        return "" if AGENT in body.get("agents", [AGENT]) and body.get("waitSeconds", 0) > 0 else f"claimed with {body}"

    def _finished(self, run: FakeRun, text: str, status: str = "completed") -> str:
        if not self.server.wait(lambda: run.status is not None):
            return f"no end; the text is {run.text[:60]!r}"
        if run.status != status or run.text != text:
            return f"ended {run.status} with the text {run.text[:60]!r}"
        return "; ".join(run.problems)

    def _counts(self, drop: str) -> str:
        run = self.server.give(FakeRun("count 20", drop=drop))
        problem = self._finished(run, counted(20))
        if problem or drop in ("", "unavailable"):
            return problem
        return "" if self.server.wait(lambda: run.repeated.get(drop), seconds=10) else "it was not repeated"

    def _lost_claim(self) -> str:
        self.server.drop_claim = True
        problem = self._finished(self.server.give(FakeRun("count 3")), counted(3))
        repeated = [body["claimId"] for body in self.server.claim_bodies].count((self.server.dropped_claims or [""])[0])
        return problem or ("" if repeated > 1 else "the claim was not repeated with its claimId")

    def _heartbeats(self) -> str:
        run = self.server.give(FakeRun("wait"))
        began = time.monotonic()
        enough = self.server.wait(lambda: len(run.heartbeats) >= 4)
        seconds = time.monotonic() - began
        run.cancelled = True
        self.server.wait(lambda: run.status is not None)
        return "" if enough and seconds < 3 * LEASE_SECONDS else f"{len(run.heartbeats)} heartbeats in {seconds:.0f} s"

    def _cancel(self) -> str:
        run = self.server.give(FakeRun("wait"))
        if not self.server.wait(lambda: run.text):
            return "no text"
        run.cancelled = True
        return self._finished(run, "waiting ", "cancelled")

    def _cancelled_before(self) -> str:
        run = FakeRun("wait")
        run.cancelled = True
        self.server.give(run)
        return self._finished(run, "", "cancelled") and self._finished(run, "waiting ", "cancelled")

    def _lease_loss(self) -> str:
        run = self.server.give(FakeRun("count 100000"))
        if not self.server.wait(lambda: run.text):
            return "no text"
        run.held = False
        self.server.wait(lambda: False, seconds=LEASE_SECONDS)
        refused = run.refused
        self.server.wait(lambda: False, seconds=LEASE_SECONDS)
        if run.refused > refused:
            return f"{run.refused - refused} requests after the lease was lost"
        return self._finished(self.server.give(FakeRun("count 3")), counted(3))

    def _take_over(self) -> str:
        run = FakeRun("count 20", epoch=3, written=counted(7))
        return self._finished(self.server.give(run), counted(20))

    def _side_by_side(self) -> str:
        waiting = self.server.give(FakeRun("wait"))
        self.server.wait(lambda: waiting.text)
        problem = self._finished(self.server.give(FakeRun("count 5")), counted(5))
        waiting.cancelled = True
        return problem or self._finished(waiting, "waiting ", "cancelled")

    def _stores(self, drop: str) -> str | None:
        """Check an upload and the part that refers to it. None if the worker stores no blobs."""
        if self.skipped:
            return None
        run = self.server.give(FakeRun(f"store {STORED_NUMBERS}", drop=drop))
        self.server.wait(lambda: run.status is not None)
        if run.status == "failed" and not run.blobs:
            return None
        problem = self._finished(run, "stored")
        if problem:
            return problem
        if [blob.content.decode() for blob in run.blobs] != [counted(STORED_NUMBERS)]:
            return f"stored {len(run.blobs)} blobs of {[len(blob.content) for blob in run.blobs]} bytes"
        refs = [part["data"].get("blob") for part in run.parts if part["kind"] == "tool-result"]
        if refs != [run.blobs[0].ref]:
            return f"referred to {refs}"
        return "" if not drop or run.repeated.get(drop) else "it was not repeated"

    def _reads(self) -> str | None:
        if self.skipped:
            return None
        return self._finished(self.server.give(FakeRun("read", file=QUESTION.encode())), QUESTION)

    def _stop(self, worker: "subprocess.Popen[bytes]") -> str:
        run = self.server.give(FakeRun("wait"))
        self.server.wait(lambda: run.text)
        worker.send_signal(signal.SIGTERM)
        try:
            code = worker.wait(self.server.timeout_seconds)
        except subprocess.TimeoutExpired:
            return f"still running after {self.server.timeout_seconds:.0f} s"
        return "" if run.status == "released" and code == 0 else f"exit status {code}, the run is {run.status}"


def main(command: list[str]) -> int:
    """Check the worker that this command starts, and print the table."""
    if not command:
        sys.stderr.write("Usage: python -m khala_client.conformance COMMAND [ARGUMENT…]\n")
        return 2
    conformance = Conformance(command)
    passed = conformance.run()
    sys.stdout.write(f"{conformance.table()}\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
