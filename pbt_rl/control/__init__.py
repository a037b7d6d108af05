"""A control group: members that begin as the population does and are left alone."""
