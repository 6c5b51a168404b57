"""Health, readiness and the list of models."""
