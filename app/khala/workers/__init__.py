"""Executes the runs of remote agents: workers claim them and write their parts by the executor protocol."""
