"""Mutation testing: small, curated faults in a copy of the source, each of which the tests named with it must catch."""
