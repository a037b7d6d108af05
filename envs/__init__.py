"""Environments. They import no torch, and of the project only errors, the registry and child processes."""
