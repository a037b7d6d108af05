"""Processes that step environments, their messages, and shared memory: mailboxes, tables, state pool."""
