"""Conversations of other products' exports, as trees of messages. Pure."""
