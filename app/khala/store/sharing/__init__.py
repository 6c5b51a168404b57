"""Sharing in the database: members, invitations, links and access."""
