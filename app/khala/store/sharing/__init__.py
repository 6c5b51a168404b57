"""Sharing as rows: members, invitations, links, and what a caller may do in a thread."""
