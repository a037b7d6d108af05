"""What other trainers call the options and commands."""
