"""The server that `khala_client.conformance` plays: the executor protocol over HTTP, for one worker."""

import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

AGENT = "conformance"
TOKEN = "khala_conformance"  # noqa: S105  # of a server that exists only for the checks
LEASE_SECONDS = 2.0
TIMEOUT_SECONDS = 20.0
"""The deadline of one check."""
MAX_BODY_BYTES = 1 << 20


class DroppedAnswer(Exception):
    """The connection is closed instead of an answer."""


class StoredBlob:
    """Content that the server has stored, and the reference to it."""

    def __init__(self, content: bytes, media_type: str, name: str | None) -> None:
        self.content = content
        self.key = content, media_type, name
        self.ref: dict[str, Any] = {
            "blobId": str(uuid.uuid4()), "size": len(content), "sha256": hashlib.sha256(content).hexdigest(),
            "mediaType": media_type,
        } | ({} if name is None else {"name": name})  # fmt: skip


class FakeRun:
    """One run that the worker is given, and everything that it has sent about it."""

    def __init__(
        self, prompt: str, *, epoch: int = 1, written: str = "", drop: str = "", file: bytes | None = None
    ) -> None:
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
        """The request whose first answer is dropped: parts, blobs or finish. `unavailable`: 503 to the first parts."""
        self.file = None if file is None else StoredBlob(file, "text/plain", "question.txt")
        """The file of the message to answer."""
        self.blobs: list[StoredBlob] = []
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
        asked: list[dict[str, Any]] = [{"type": "text", "text": self.prompt}]
        if self.file is not None:
            asked.append({"type": "file", "blob": self.file.ref})
        message = {
            "id": str(uuid.uuid4()), "threadId": str(uuid.uuid4()), "role": "user", "status": "final", "seq": 0,
            "content": asked, "createdAt": now, "updatedAt": now,
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
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": self}))
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

    def read_blob(self, path: str, epoch: str) -> bytes | None:
        """The content of a blob of a run, None if a worker may not read it."""
        with self.lock:
            run, blob_id = self._run_of(path), path.rpartition("/")[2]
            if run is None or epoch != str(run.epoch):
                return None
            known = [*run.blobs, *([] if run.file is None else [run.file])]
            return next((one.content for one in known if one.ref["blobId"] == blob_id), None)

    def store_blob(self, path: str, epoch: str, blob: StoredBlob) -> tuple[int, dict[str, Any]]:
        """The status and body of the answer to an upload. Raises `DroppedAnswer`."""
        with self.lock:
            run = self._run_of(path)
            if run is None:
                return _problem(404, "run_not_found")
            if not run.held or epoch != str(run.epoch):
                run.refused += 1
                return _problem(409, "stale_epoch")
            stored = next((one for one in run.blobs if one.key == blob.key), None)
            if stored is not None:
                run.repeated["blobs"] = run.repeated.get("blobs", 0) + 1
                return 200, stored.ref
            run.blobs.append(blob)
            if run.drop == "blobs":
                run.drop = ""
                raise DroppedAnswer
            return 200, blob.ref

    def _run_of(self, path: str) -> FakeRun | None:
        """The run in the path `/api/executor/runs/{id}/…`."""
        return next((one for one in self.runs if one.id in path.split("/")), None)

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


class _Handler(BaseHTTPRequestHandler):
    """Serves the requests of the worker. Subclasses have the `fake` server."""

    fake: FakeServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        epoch = parse_qs(url.query).get("epoch", [""])[0]
        content = self.fake.read_blob(url.path, epoch) if self._is_allowed() else None
        if content is None:
            self._send(*_problem(404, "blob_not_found"))
        else:
            self._send_bytes(200, "text/plain", content)

    def do_POST(self) -> None:
        body = self._body()
        if body is None or not self._is_allowed():
            self.fake.problems.append(f"{self.path} with more than {MAX_BODY_BYTES} bytes, or without the token")
            self.close_connection = True
            self._send(*_problem(401, "unauthorized"))
            return
        url = urlsplit(self.path)
        try:
            if url.path.endswith("/blobs"):
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                blob = StoredBlob(body, self.headers.get("Content-Type", ""), query.get("name"))
                self._send(*self.fake.store_blob(url.path, query.get("epoch", ""), blob))
            else:
                self._send(*self.fake.answer(url.path, json.loads(body)))
        except DroppedAnswer:
            self.close_connection = True
        except (KeyError, TypeError, ValueError) as error:
            self.fake.problems.append(f"{self.path}: malformed body ({error})")
            self._send(*_problem(400, "invalid_input"))

    def _is_allowed(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _body(self) -> bytes | None:
        """The body, None if it is too long."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            size = int(self.headers.get("Content-Length", "0"))
            return self.rfile.read(size) if size <= MAX_BODY_BYTES else None
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            if len(body) + size > MAX_BODY_BYTES:
                return None
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, status: int, body: dict[str, Any]) -> None:
        media_type = "application/json" if status < 400 else "application/problem+json"
        self._send_bytes(status, media_type, json.dumps(body).encode())

    def _send_bytes(self, status: int, media_type: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(data)))
        try:
            self.end_headers()
            self.wfile.write(data)
        except ConnectionError:  # The worker has left before the answer, as it may at its end.
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _problem(status: int, code: str) -> tuple[int, dict[str, Any]]:
    return status, {"title": code, "status": status, "code": code, "detail": code}
