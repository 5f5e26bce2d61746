"""Imported before penstock: with --cpu-time in the command line, engines in this process measure its CPU time instead
of the time that passes. With one thread both are the same on a machine that has nothing else to do; on a busy one only
CPU time says what a step costs.
"""

import sys
import time

if "--cpu-time" in sys.argv:
    time.monotonic = time.perf_counter = time.process_time
