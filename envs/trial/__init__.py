"""The first trial of an environment's code, in a process that it may end."""
