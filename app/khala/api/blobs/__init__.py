"""Blobs over REST: uploads and downloads."""
