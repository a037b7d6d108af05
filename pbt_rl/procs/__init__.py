"""Processes: children, what keeps and ends them, their signals and their stacks. Below all other rooms."""
