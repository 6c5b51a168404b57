"""All routes of the console."""

from khala.api.console.runs import ConsoleRunController

CONTROLLERS = (ConsoleRunController,)
