"""Checks a worker, in any language, against the executor protocol: `python -m khala_client.conformance COMMAND…`.

It plays the server: it starts the worker's command with the variables `KHALA_SERVER`, `KHALA_TOKEN` and `KHALA_AGENT`,
gives it runs, drops answers on purpose, cancels, takes leases away, and prints a table. The exit status is 1 if a check
failed. The worker's agent must answer two prompts: `count N` with the text `1 2 … N `, written in N pieces; and `wait`
with the text `waiting `, after which it waits until it is cancelled.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

AGENT = "conformance"
TOKEN = "khala_conformance"  # noqa: S105  # of a server that exists only for the checks
LEASE_SECONDS = 2.0
TIMEOUT_SECONDS = 20.0
"""The deadline of one check."""
MAX_BODY_BYTES = 1 << 20


class DroppedAnswer(Exception):
    """The connection is closed instead of an answer."""


class FakeRun:
    """One run that the worker is given, and everything that it has sent about it."""

    def __init__(self, prompt: str, *, epoch: int = 1, written: str = "", drop: str = "") -> None:
        self.id = str(uuid.uuid4())
        self.epoch = epoch
        self.prompt = prompt
        self.parts: list[dict[str, Any]] = [{"kind": "text-delta", "data": {"text": written}}] if written else []
        self.written = written
        self.claimed = False
        self.held = True
        self.cancelled = False
        self.status: str | None = None
        self.drop = drop
        """The request whose first answer is dropped: parts or finish; or `unavailable` for a 503 to the first parts."""
        self.repeated: dict[str, int] = {}
        self.heartbeats: list[float] = []
        self.refused = 0
        """Requests after the lease was lost."""
        self.problems: list[str] = []

    @property
    def text(self) -> str:
        """The text of the stored parts."""
        return "".join(part["data"]["text"] for part in self.parts if part["kind"] == "text-delta")

    def wire(self) -> dict[str, Any]:
        """The run as a claim returns it."""
        content = [{"type": "text", "text": self.written}] if self.written else []
        now = "2026-01-01T00:00:00Z"
        message = {
            "id": str(uuid.uuid4()), "threadId": str(uuid.uuid4()), "role": "user", "status": "final", "seq": 0,
            "content": [{"type": "text", "text": self.prompt}], "createdAt": now, "updatedAt": now,
        }  # fmt: skip
        return {
            "runId": self.id, "threadId": message["threadId"], "messageId": str(uuid.uuid4()),
            "agent": {
                "name": AGENT, "version": 1, "title": AGENT, "description": "", "instructions": "", "tools": ["*"],
                "examples": [], "executor": "remote",
            },
            "options": {}, "messages": [message], "epoch": self.epoch, "leaseSeconds": LEASE_SECONDS,
            "nextSeq": len(self.parts), "nextReceipt": 0, "content": content, "approvals": [],
            "takenOver": self.epoch > 1, "cancelled": self.cancelled, "reasoning": False,
        }  # fmt: skip


class FakeServer:
    """The executor protocol over HTTP for one worker. `lock` guards all state."""

    def __init__(self, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.timeout_seconds = timeout_seconds
        self.lock = threading.Condition()
        self.runs: list[FakeRun] = []
        self.claims: dict[str, list[FakeRun]] = {}
        self.drop_claim = False
        self.dropped_claims: list[str] = []
        self.claim_bodies: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve while this is open."""
        thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._http.shutdown()
            self._http.server_close()

    def give(self, run: FakeRun) -> FakeRun:
        """Queue a run."""
        with self.lock:
            self.runs.append(run)
            self.lock.notify_all()
        return run

    def wait(self, condition: Callable[[], object], *, seconds: float | None = None) -> bool:
        """Wait for the condition. Returns whether it came true in time."""
        with self.lock:
            return bool(self.lock.wait_for(condition, self.timeout_seconds if seconds is None else seconds))

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status and body of an answer. Raises `DroppedAnswer`."""
        with self.lock:
            try:
                if path == "/api/executor/claim":
                    return self._claim(body)
                if path == "/api/executor/heartbeat":
                    return self._heartbeat(body)
                *_, run_id, action = path.split("/")
                run = next((one for one in self.runs if one.id == run_id), None)
                return _problem(404, "run_not_found") if run is None else self._act(run, action, body)
            finally:
                self.lock.notify_all()

    def _claim(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        claim_id = body["claimId"]
        self.claim_bodies.append(body)
        if claim_id in self.claims:
            return 200, {"runs": [run.wire() for run in self.claims[claim_id]]}
        most = min(body.get("maxRuns", 1), 50)
        self.lock.wait_for(lambda: any(not run.claimed for run in self.runs), min(body.get("waitSeconds", 0), 2))
        found = [run for run in self.runs if not run.claimed][:most]
        if found:
            self.claims[claim_id] = found
        for run in found:
            run.claimed = True
        if found and self.drop_claim:
            self.drop_claim = False
            self.dropped_claims.append(claim_id)
            raise DroppedAnswer
        return 200, {"runs": [run.wire() for run in found]}

    def _heartbeat(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        states = []
        for ref in body["runs"]:
            run = next((one for one in self.runs if one.id == ref["runId"]), None)
            held = run is not None and run.held and run.epoch == ref["epoch"] and run.status is None
            if run is not None:
                run.heartbeats.append(time.monotonic())
            cancelled = run is not None and run.cancelled
            states.append({**ref, "held": held, "cancelled": cancelled, "approvals": []})
        return 200, {"leaseSeconds": LEASE_SECONDS, "runs": states}

    def _act(self, run: FakeRun, action: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if body.get("epoch") != run.epoch:
            run.problems.append(f"{action} under the epoch {body.get('epoch')} instead of {run.epoch}")
        if not run.held or body.get("epoch") != run.epoch:
            run.refused += 1
            return _problem(409, "stale_epoch")
        if action == "parts":
            return self._append(run, body)
        if action == "release":
            run.status = "released"
            return 200, {"status": "queued"}
        if action == "finish":
            return self._finish(run, body)
        return _problem(404, "not_found")

    def _append(self, run: FakeRun, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if run.status is not None:
            run.problems.append("parts after the end")
            return _problem(409, "run_ended")
        if run.drop == "unavailable":
            run.drop = ""
            return _problem(503, "unavailable")
        seq, parts = body["seq"], body["parts"]
        if seq > len(run.parts):
            run.problems.append(f"seq {seq} after {len(run.parts)} parts")
            return _problem(409, "wrong_seq") if seq else _problem(400, "invalid_input")
        known = run.parts[seq : seq + len(parts)]
        if known:
            run.repeated["parts"] = run.repeated.get("parts", 0) + 1
        if known != parts[: len(known)]:
            run.problems.append(f"other parts at the seq {seq}")
            return _problem(409, "conflict")
        run.parts += parts[len(known) :]
        if run.drop == "parts":
            run.drop = ""
            raise DroppedAnswer
        return 200, {"nextSeq": len(run.parts), "nextReceipt": 0}

    def _finish(self, run: FakeRun, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if run.status is not None:
            run.repeated["finish"] = run.repeated.get("finish", 0) + 1
            return 200, {"status": "final"}
        if body["seq"] != len(run.parts):
            run.problems.append(f"the end at seq {body['seq']} after {len(run.parts)} parts")
            return _problem(409, "wrong_seq")
        run.status = body["status"]
        if run.drop == "finish":
            run.drop = ""
            raise DroppedAnswer
        return 200, {"status": {"completed": "final", "failed": "error"}.get(body["status"], "canceled")}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length", "0"))
                if size > MAX_BODY_BYTES or self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    fake.problems.append(f"{self.path} with {size} bytes, or without the token")
                    self.close_connection = True
                    self._send(*_problem(401, "unauthorized"))
                    return
                try:
                    self._send(*fake.answer(self.path, json.loads(self.rfile.read(size))))
                except DroppedAnswer:
                    self.close_connection = True
                except (KeyError, TypeError, ValueError) as error:
                    fake.problems.append(f"{self.path}: malformed body ({error})")
                    self._send(*_problem(400, "invalid_input"))

            def _send(self, status: int, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json" if status < 400 else "application/problem+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        return Handler


def _problem(status: int, code: str) -> tuple[int, dict[str, Any]]:
    return status, {"title": code, "status": status, "code": code, "detail": code}


def counted(number: int) -> str:
    """The answer to `count NUMBER`."""
    return "".join(f"{one} " for one in range(1, number + 1))


class Conformance:
    """The checks of one worker."""

    def __init__(self, command: list[str], *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.server = FakeServer(timeout_seconds)
        self.results: list[tuple[str, str]] = []
        """The name of each check, and its problem: empty if it passed."""
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
                self._check("stops on SIGTERM, and gives its run back", lambda: self._stop(worker))
                self._worker = None
                self._check("sends well-formed requests", lambda: "; ".join(self.server.problems))
            finally:
                worker.kill()
                worker.wait()
        return not any(problem for _, problem in self.results)

    def table(self) -> str:
        """The results, one line for each check."""
        return "\n".join(f"{'FAIL' if problem else 'ok  '}  {name}{f': {problem}' if problem else ''}"
                         for name, problem in self.results)  # fmt: skip

    def _check(self, name: str, check: Callable[[], str]) -> None:
        code = None if self._worker is None else self._worker.poll()
        self.results.append((name, check() if code is None else f"the worker has exited with {code}"))

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
