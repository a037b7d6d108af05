"""Processes that step environments, and their shared memory: mailboxes, tables, messages."""
