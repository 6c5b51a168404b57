"""Search of messages, files and memories."""
