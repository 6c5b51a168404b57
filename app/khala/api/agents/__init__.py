"""Agents over REST, and the choice of a run's agent."""
