"""Processes that step environments, and what they share with a learner: mailboxes, tables, messages, keepers."""
