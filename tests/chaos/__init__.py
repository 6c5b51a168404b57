"""Chaos test: a whole deployment of Khala under random faults and users, and the invariants that must hold."""
