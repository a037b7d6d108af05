"""What other trainers call the options."""
