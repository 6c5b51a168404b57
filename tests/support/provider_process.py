"""The scripted provider server as a process of its own, for system tests and benchmarks."""

import argparse
import asyncio

import uvloop

from tests.support.providers import by_words, serving


async def serve(arguments: argparse.Namespace) -> None:
    """Print the URL once listening, and serve until killed."""
    default = by_words(arguments.tokens, arguments.pace, arguments.stamp)
    async with serving(default=default, host=arguments.host, port=arguments.port) as server:
        server.keep_calls = False
        print(server.url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Parse the command line and serve; end quietly on an interrupt."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.providers")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=100, help="tokens of an answer")
    parser.add_argument("--pace", type=float, default=50.0, help="tokens a second; 0 is as fast as possible")
    parser.add_argument("--stamp", action="store_true", help="send the current time as each token")
    try:
        uvloop.run(serve(parser.parse_args()))
    except KeyboardInterrupt:
        return
