"""Rules and controllers that a user wrote, and settings of rules that have no option of their own."""
