"""A supervised worker that answers with a slow graph of LangGraph.

`KHALA_SERVER`, `KHALA_TOKEN` and `KHALA_AGENT` say where. The process of the worker is forked from its supervisor, so
that the library is imported once, and again after it was killed. Its id is in the file `KHALA_APP_JOURNAL.pid`.
"""

import os
from pathlib import Path

from khala_client.worker import RunContext, Worker
from tests.support.slow_graph import graph_slow

worker = Worker(os.environ["KHALA_SERVER"], os.environ["KHALA_TOKEN"], grace_seconds=0)


@worker.agent(os.environ["KHALA_AGENT"], replay=False)
async def answer(context: RunContext) -> None:
    """Answer as the agent in the server does."""
    await graph_slow.function(context)  # type: ignore[arg-type]  # the part of the context that adapters use


def supervise() -> None:
    """Work in a child process, and in another one after its death, until one ends by itself."""
    status = 1
    while status:
        child = os.fork()
        if child == 0:
            worker.serve()
            os._exit(0)
        Path(os.environ["KHALA_APP_JOURNAL"] + ".pid").write_text(str(child))
        _, status = os.waitpid(child, 0)


if __name__ == "__main__":
    supervise()
