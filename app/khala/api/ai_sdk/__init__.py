"""The AI SDK's UI message stream, over the same log: unmodified `useChat` clients follow and start runs."""
