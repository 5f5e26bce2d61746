"""The scheduler: plans steps and settles their results. It knows tokens and KV blocks, but no tensors.

scheduler.Scheduler            the interface: submit, cancel, plan, settle, drain, fail
planner.Planner                divides the token budget of a step
queues.SequenceQueues          where every sequence is; admit, park, preempt
queue_policy.SchedulerPolicy   who goes first; policy_order.PolicyOrder is a list in that order
prefix_claims.PrefixClaims     which sequence computes which prefix now, and which wait for it
sequence.Sequence              the state of one sequence
slot_allocator.SlotAllocator   the runner's slots
step_recorder.StepRecorder     packs a record of each step, for observers
views.Views                    snapshots for the debug API
"""

from penstock.schedule.scheduler import Scheduler

__all__ = ["Scheduler"]
