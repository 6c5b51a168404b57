"""Sharing over REST: claims, members, invitations and links."""
