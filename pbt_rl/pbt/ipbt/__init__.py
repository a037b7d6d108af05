"""IPBT: PBT that restarts all members when it no longer gets better."""
