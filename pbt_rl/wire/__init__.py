"""Processes and what passes between them: typed messages, mailboxes, tables in shared memory.

Actors load this: no torch, and nothing above it but envs, errors and the plain values of pbt.
"""
