"""`pbt-rl prove`: whether population based training helps on a task, by paired seeds and fresh games."""
