"""What is read from a journal afterwards: who descends from whom, what was noise, decisions made again."""
