"""Start values of single members, given by the user."""
