"""Khala: durable, realtime chat threads on nothing but Postgres."""
