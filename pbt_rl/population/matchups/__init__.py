"""Who plays whom in environments of several agents, and what their games say of the members."""
