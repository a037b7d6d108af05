"""Environments.

An import of this package does not import torch. Device simulators import torch when they are made. From the project,
this package imports only errors, registry, options and processes.
"""
