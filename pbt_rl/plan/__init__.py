"""Plan of a run: devices, actors, rows and threads.

All functions except those of `machine` depend only on their arguments.
"""

from pbt_rl.plan.layout import PackPlan, Plan, make_plan, parse_devices
from pbt_rl.plan.machine import Machine, available_cpus

__all__ = ["Machine", "PackPlan", "Plan", "available_cpus", "make_plan", "parse_devices"]
