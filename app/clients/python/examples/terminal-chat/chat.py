"""A chat in the terminal: `python chat.py [FILE]`. The conversation goes on where it was, also after a restart.

FILE (chat.json unless given) has the thread, its key, and the message that is being answered.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from khala_client import Conflict, Khala, KhalaError, NotFound, RunFailed, RunOptions


class Conversation:
    """One thread, and the file in which this program keeps its place."""

    def __init__(self, khala: Khala, path: Path) -> None:
        self._path = path
        self._place: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        if not self._place:
            created = khala.threads.create(title="Terminal")
            self._store(thread=str(created.id), key=created.anon_key)
        self._thread = khala.thread(self._place["thread"], anon_key=self._place.get("key"))

    def resume(self) -> None:
        """Show the answer that this program was showing when it ended. The server has written it in the meantime."""
        if "message" in self._place:
            self._answer(self._place["message"], self._place["text"])

    def ask(self, text: str) -> None:
        """Send a message and show its answer."""
        message = str(uuid4())
        # Stored before it is sent: the message has the same id if this program is restarted, and is stored once.
        self._store(message=message, text=text)
        self._answer(message, text)

    def _answer(self, message: str, text: str) -> None:
        try:
            run = self._thread.send(text, RunOptions(if_busy="queue"), message_id=message)
            with run.stream_text() as pieces:
                for piece in pieces:
                    print(piece, end="", flush=True)
            print()
        except RunFailed as error:
            print(f"\n[{error.code}: {error.message}]")
        except (Conflict, NotFound) as error:
            print(f"[{error.message}]")
        self._place.pop("message", None)
        self._store()

    def _store(self, **fields: Any) -> None:
        """Replace the file as a whole, so that it is never half written."""
        self._place |= fields
        written = self._path.with_suffix(".new")
        written.write_text(json.dumps(self._place))
        written.chmod(0o600)
        written.replace(self._path)


def main() -> None:
    """Read lines and show answers until the end of the input."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "chat.json")
    with Khala(token=os.environ.get("KHALA_TOKEN")) as khala:
        conversation = Conversation(khala, path)
        conversation.resume()
        for line in sys.stdin:
            if line.strip():
                conversation.ask(line.strip())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except KhalaError as error:
        sys.exit(f"{type(error).__name__}: {error.message}")
