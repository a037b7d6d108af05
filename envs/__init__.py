"""Environments: a leaf room. It imports neither torch nor anything else of the project."""
