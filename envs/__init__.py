"""Environments.

This package does not import torch. From the project, this package imports only errors, registry, options and processes.
"""
