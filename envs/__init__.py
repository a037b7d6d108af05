"""Environments. This package does not import torch. It uses the project's errors, registry, options and processes."""
