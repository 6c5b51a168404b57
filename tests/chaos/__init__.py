"""Chaos: a whole Khala under faults and users that a seed decides, and what must be true of it whatever happens."""
