"""The scripted demo model."""
