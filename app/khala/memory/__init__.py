"""Memory: stores and finds memories, and embeds them in the background."""
