"""Preferences of a person in all their chats, and in those of one folder."""

import msgspec

from khala.domain.chat import WireStruct

MAX_INSTRUCTION_CHARACTERS = 4_000
"""Of a person's own instructions."""
MAX_FOLDER_INSTRUCTION_CHARACTERS = 8_000
"""Of a person's instructions for one folder."""


class Preferences(WireStruct, frozen=True, kw_only=True):
    """The preferences of an account or a guest. None: nothing was chosen.

    `instructions` go to the model in the runs that the person requests. `model` answers where neither the run nor its
    agent names one. `titles` says whether a model may write titles of their threads.
    """

    instructions: str | None = None
    model: str | None = None
    titles: bool


class FolderInstructions(msgspec.Struct, frozen=True, kw_only=True):
    """The instructions of the folder in which a run's requester keeps the thread, and the folder's name."""

    name: str
    text: str


NO_PREFERENCES = Preferences(titles=True)
