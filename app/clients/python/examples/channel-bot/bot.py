"""A bot that connects a chat channel to a thread: `python bot.py FILE`, with the channel's messages as lines of JSON.

Each line of the input is `{"channel", "id", "author", "text"}`, as a gateway of Discord or Slack delivers them. The bot
sends them to the channel's thread, and prints each answer as `{"channel", "to", "text"}`. Channels are served side by
side. A message that the gateway delivers twice is answered once, also after a restart.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from khala_client import AsyncKhala, Conflict, KhalaError, RunFailed, RunOptions

MAX_WAITING_MESSAGES = 100
"""Messages of a channel that wait. The gateway waits if there are more."""


class ChannelBot:
    """The threads of all channels. `path` stores the messages that were answered."""

    def __init__(self, khala: AsyncKhala, path: Path) -> None:
        self._khala = khala
        self._path = path
        self._answered: set[str] = set(path.read_text().split()) if path.exists() else set()
        self._waiting: dict[str, asyncio.Queue[dict[str, Any] | None]] = {}

    async def run(self) -> None:
        """Read messages to the end of the input, and end when all are answered."""
        async with asyncio.TaskGroup() as tasks:
            while line := await asyncio.to_thread(sys.stdin.readline):
                message = json.loads(line)
                channel = message["channel"]
                if channel not in self._waiting:
                    self._waiting[channel] = asyncio.Queue(MAX_WAITING_MESSAGES)
                    tasks.create_task(self._serve(channel))
                await self._waiting[channel].put(message)
            for queue in self._waiting.values():
                await queue.put(None)

    async def _serve(self, channel: str) -> None:
        # Ids that follow from those of the channel: creating and sending again finds what there is.
        thread = await self._khala.threads.create(thread_id=_id("channel", channel), title=channel)
        queue = self._waiting[channel]
        while (message := await queue.get()) is not None:
            sent = _id("message", channel, message["id"])
            if str(sent) in self._answered:
                continue
            text = f"{message['author']}: {message['text']}"
            try:
                run = await thread.send(text, RunOptions(if_busy="queue"), message_id=sent)
                answer = (await run.result()).text
            except RunFailed as error:
                answer = f"There is no answer: {error.message}"
            except Conflict:
                continue  # The gateway has delivered another text under this id.
            print(json.dumps({"channel": channel, "to": message["id"], "text": answer}), flush=True)
            self._mark_answered(str(sent))

    def _mark_answered(self, message: str) -> None:
        self._answered.add(message)
        with self._path.open("a") as file:
            file.write(message + "\n")


def _id(*names: str) -> UUID:
    return uuid5(NAMESPACE_URL, json.dumps(names))


async def main() -> None:
    """Serve the channels with the API token in `KHALA_TOKEN`."""
    if len(sys.argv) != 2:
        sys.exit("Usage: python bot.py FILE < MESSAGES. FILE stores the ids of the messages that were answered.")
    token = os.environ.get("KHALA_TOKEN")
    if not token:
        sys.exit("Set KHALA_TOKEN to an API token with the scopes `read` and `write`.")
    async with AsyncKhala(token=token) as khala:
        await ChannelBot(khala, Path(sys.argv[1])).run()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except* KhalaError as errors:
        sys.exit("\n".join(f"{type(error).__name__}: {error}" for error in errors.exceptions))
