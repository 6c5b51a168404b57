"""The worker that `khala_client.conformance` checks. Its agent counts, stores, reads, or waits for its cancellation."""

import asyncio
import os
import sys

from khala_client.worker import RunContext, Worker

if missing := {"KHALA_SERVER", "KHALA_TOKEN", "KHALA_AGENT"} - os.environ.keys():
    sys.exit(f"Set {', '.join(sorted(missing))}; `python -m khala_client.conformance` does.")
worker = Worker(os.environ["KHALA_SERVER"], os.environ["KHALA_TOKEN"], grace_seconds=1)


@worker.agent(os.environ["KHALA_AGENT"])
async def answer(context: RunContext) -> None:
    """Answer `count N`, `store N`, `read` or `wait`."""
    command, _, number = context.prompt.partition(" ")
    match command:
        case "wait":
            await context.text("waiting ")
            await asyncio.Event().wait()
        case "store":
            await context.step("count", lambda: "".join(f"{one} " for one in range(1, int(number) + 1)))
            await context.text("stored")
        case "read":
            for file in context.files:
                async for piece in context.read_blob(file):
                    await context.text(piece.decode())
        case _:
            for one in range(1, int(number) + 1):
                await context.text(f"{one} ")
                await asyncio.sleep(0.01)


if __name__ == "__main__":
    worker.serve()
