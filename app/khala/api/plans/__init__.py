"""Plans over REST: create and read them, give them commands, and read and write them as documents."""
