"""What runs when. Plans steps and settles their results; knows tokens and blocks, but no tensors.

scheduler.Scheduler   the front: submit, cancel, plan, settle, drain, fail
planner.Planner       shares out the tokens of a step
roster.Roster         where every sequence is, and the moves between places
claims.Claims         who computes which prefix right now, and who waits for it
sequence.Sequence     one sequence's state
recorder.Recorder     writes down what is decided, for whoever watches
views.Views           what people may look at while it runs
policy, order, slots  who goes first; lists in that order; rows of the runner
"""

from penstock.schedule.scheduler import Scheduler

__all__ = ["Scheduler"]
