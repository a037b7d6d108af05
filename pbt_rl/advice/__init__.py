"""What the user of a run may not have meant: too much for its memory, and options that nothing reads."""
