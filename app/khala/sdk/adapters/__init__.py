"""Agents of other libraries as agents of Khala. Each module needs the extra of its name."""
