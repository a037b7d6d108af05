"""Processes that step environments, and the memory they share with a learner: mailboxes, tables, messages."""
