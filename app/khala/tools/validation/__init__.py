"""Validation of tool arguments against JSON Schemas."""
