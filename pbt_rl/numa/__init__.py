"""NUMA nodes: actors stay on the cores beside their GPU."""
