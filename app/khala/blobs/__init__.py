"""Blobs: large outputs and uploads, stored once by their hash."""
