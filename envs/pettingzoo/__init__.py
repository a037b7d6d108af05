"""PettingZoo: environments of several agents, by either API."""
