"""Parts that the adapters of chat clients share: ids, tool values, results of client tools, and starts of runs."""
