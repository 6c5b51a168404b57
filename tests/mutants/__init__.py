"""Mutation testing: small, curated faults in a copy of the source. The tests of each mutant must detect it."""
