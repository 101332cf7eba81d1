"""How many workers each job of a cluster should have: a pure function with a reason for each answer.

    plan(cluster, jobs, pods, now, policy) -> Plan

`cluster` what there is, `jobs` what jobs may have and how fast they were measured to be, `planning` the rule,
`value` what a worker is worth, `table` who fits where, `forecast` when jobs begin and end, `published` the
rules to compare with. `replay` and `workloads` show what a policy would have done with other people's jobs.
"""

from __future__ import annotations

from edl_allreduce.core.autoscale.cluster import Cluster, Node, Pod, Role, Template
from edl_allreduce.core.autoscale.jobs import Job
from edl_allreduce.core.autoscale.planning import plan
from edl_allreduce.core.autoscale.policy import Decision, Plan, Policy, Rule

__all__ = ["Cluster", "Decision", "Job", "Node", "Plan", "Pod", "Policy", "Role", "Rule", "Template", "plan"]
