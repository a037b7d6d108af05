"""Networks and losses of a user's own, and what they are checked for."""
