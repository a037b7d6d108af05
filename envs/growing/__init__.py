"""Units of Atari games that begin with some emulators and get the others while they run."""
