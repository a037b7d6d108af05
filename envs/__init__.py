"""Environments. Imports no torch, and of the project only errors, registry, options and child processes."""
