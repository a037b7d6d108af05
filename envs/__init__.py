"""Environments.

An import of this package does not import torch. Device simulators import torch when they are made. Of the other
modules of pbt_rl, this package imports only errors, registry, options and processes.
"""
