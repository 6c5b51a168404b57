"""All routes of the console."""

from khala.api.console.accounts import ConsoleAccountController, ConsoleBudgetController
from khala.api.console.operations import ConsoleOperationsController
from khala.api.console.records import ConsoleRecordController
from khala.api.console.runs import ConsoleRunController
from khala.api.console.threads import ConsoleThreadController

CONTROLLERS = (
    ConsoleOperationsController,
    ConsoleRunController,
    ConsoleThreadController,
    ConsoleAccountController,
    ConsoleBudgetController,
    ConsoleRecordController,
)
