"""Runs one statement on a Postgres server over its unix socket, without a driver or an event loop."""

import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROTOCOL = 3 << 16
UNKNOWN_DATABASE = "3D000"
DUPLICATE_DATABASE = "42P04"
UNIQUE_VIOLATION = "23505"
TOO_MANY_CONNECTIONS = "53300"


class ProbeResult(NamedTuple):
    """The server's version and the first column of the last row."""

    version: str
    value: str | None


class ProbeRefusedError(Exception):
    """The server answered with an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code


class ProbeSession:
    """An idle session, which ends when the server does."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._connection.settimeout(0)

    def is_alive(self) -> bool:
        """Whether the server has neither closed the session nor said why it will. Does not wait."""
        try:
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """End the session."""
        with suppress(OSError):
            self._connection.sendall(_message(b"X", b""))
        self._connection.close()


def query(path: Path, database: str, sql: str, *, seconds: float = 5.0) -> ProbeResult:
    """Run one statement as the superuser. Raises `OSError` on a timeout, `ProbeRefusedError` on an error."""
    result, session = query_and_stay(path, database, sql, seconds=seconds)
    session.close()
    return result


def query_and_stay(path: Path, database: str, sql: str, *, seconds: float = 5.0) -> tuple[ProbeResult, ProbeSession]:
    """As `query`. Also returns the session, which the caller closes."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(seconds)
        connection.connect(str(path))
        version, _ = _greet(connection, database)
        connection.sendall(_message(b"Q", sql.encode() + b"\0"))
        _, value = _listen(connection)
    except BaseException:
        connection.close()
        raise
    return ProbeResult(version, value), ProbeSession(connection)


def _greet(connection: socket.socket, database: str) -> tuple[str, str | None]:
    parameters = f"user\0khala\0database\0{database}\0application_name\0khala-probe\0\0"
    connection.sendall(_message(b"", struct.pack("!i", PROTOCOL) + parameters.encode()))
    return _listen(connection)


def _listen(connection: socket.socket) -> tuple[str, str | None]:
    """Read until the server is ready for a statement. Returns the version and the value received meanwhile."""
    version, value = "", None
    while True:
        kind, body = _receive(connection)
        match kind:
            case b"E":
                raise _refusal(body)
            case b"S" if body.startswith(b"server_version\0"):
                version = body.split(b"\0")[1].decode()
            case b"D":
                value = _first_column(body)
            case b"R" if body[:4] != b"\0\0\0\0":
                raise ProbeRefusedError("28000", "the server asks for a password")
            case b"Z":
                return version, value


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _receive(connection: socket.socket) -> tuple[bytes, bytes]:
    kind, length = struct.unpack("!ci", _exactly(connection, 5))
    return kind, _exactly(connection, length - 4)


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        piece = connection.recv(count - len(received))
        if not piece:
            raise ConnectionResetError("the server hung up")
        received += piece
    return received


def _first_column(body: bytes) -> str | None:
    columns, length = struct.unpack_from("!hi", body) if len(body) >= 6 else (0, -1)
    return body[6 : 6 + length].decode() if columns and length >= 0 else None


def _refusal(body: bytes) -> ProbeRefusedError:
    fields = {field[:1]: field[1:].decode(errors="replace") for field in body.split(b"\0") if field}
    return ProbeRefusedError(fields.get(b"C", ""), fields.get(b"M", ""))
