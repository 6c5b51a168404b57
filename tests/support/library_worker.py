"""A worker that answers with a slow graph of LangGraph: `KHALA_SERVER`, `KHALA_TOKEN` and `KHALA_AGENT` say where."""

import os

from khala_client.worker import RunContext, Worker
from tests.support.slow_graph import graph_slow

worker = Worker(os.environ["KHALA_SERVER"], os.environ["KHALA_TOKEN"], grace_seconds=0)


@worker.agent(os.environ["KHALA_AGENT"], replay=False)
async def answer(context: RunContext) -> None:
    """Answer as the agent in the server does."""
    await graph_slow.function(context)  # type: ignore[arg-type]  # the part of the context that adapters use


if __name__ == "__main__":
    worker.serve()
