"""The scheduler: plans steps and settles their results. It knows tokens and KV blocks, but no tensors.

scheduler.Scheduler            the interface: submit, cancel, plan, settle, drain, fail
planner.Planner                divides the token budget of a step
queues.SequenceQueues          where every sequence is; admit, park, preempt
queue_policy.SchedulerPolicy   who goes first; policy_order.PolicyOrder is a queue in that order
tenant_shares.TenantShares     what each tenant was served; fair_preemption: who gives its slot to another tenant
waiting_bounds.WaitingBounds   how many may wait
pace.Pace                      measured speeds, for the deadline policy
prefix_claims.PrefixClaims     which sequence computes which prefix now, and which wait for it
sequence.Sequence              the state of one sequence
slot_allocator.SlotAllocator   the runner's slots
step_recorder.StepRecorder     packs a record of each step, for observers; wait_totals: how long tenants waited for what
views.Views                    snapshots for the debug API
"""

from penstock.schedule.scheduler import Scheduler

__all__ = ["Scheduler"]
