"""Makes the demo model obey directives that harm the process it runs in.

Python imports this file at its start if its folder is in PYTHONPATH, and a process that tests fork imports it by its
name. So it affects the processes under test, and those that they start for isolated runs.

    /hold      C code that holds the GIL for ever
    /sleep     a call that blocks the event loop for ever, without the GIL
    /die       the process ends at once
    /eat       takes memory until there is none
"""

import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from khala.models.demo import model
from khala.models.demo.tools import direct
from khala.models.port import HoldText, ModelEvent, Prompt

HARMS = ("/hold", "/sleep", "/die", "/eat")
demo_stream = model.DemoModel.stream


def harm(message: str) -> None:
    """Follow the directives of the message."""
    for word in message.split():
        if word in HARMS:
            os.write(2, f"poison: {word}\n".encode())
        match word:
            case "/hold":
                re.match("(a+)+$", "a" * 60 + "b")
            case "/sleep":
                time.sleep(3600)
            case "/die":
                os._exit(7)
            case "/eat":
                _ = [bytearray(64 << 20) for _ in range(1 << 20)]


def stream(
    self: model.DemoModel, prompt: Prompt, hold: HoldText | None = None
) -> "AbstractAsyncContextManager[AsyncIterator[ModelEvent]]":
    """Harm this process before the answer."""
    harm(direct(prompt)[0])
    return demo_stream(self, prompt, hold)


model.DemoModel.stream = stream  # type: ignore[method-assign,assignment]  # the purpose of this file
