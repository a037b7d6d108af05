"""Plans: from a config and a machine to devices, actors, rows and threads. Pure but for `Machine.here`."""

from pbt_rl.plan.layout import PackPlan, Plan, make_plan, parse_devices
from pbt_rl.plan.machine import HostMemory, Machine, Node, available_cpus, host_memory

__all__ = [
    "HostMemory",
    "Machine",
    "Node",
    "PackPlan",
    "Plan",
    "available_cpus",
    "host_memory",
    "make_plan",
    "parse_devices",
]
