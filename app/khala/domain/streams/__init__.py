"""Rules of durable streams: offsets, contents, producers and forks. Decides without I/O."""
