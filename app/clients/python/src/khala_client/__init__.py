"""The Python client of Khala: threads, runs, plans and memories of a server, with realtime updates.

`AsyncKhala` is for asyncio, `Khala` for programs without it. Both have the same methods.
"""
