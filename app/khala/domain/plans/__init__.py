"""Plans: long work in steps that is started, paused, resumed, changed and stopped. Pure: no I/O and no clock."""
