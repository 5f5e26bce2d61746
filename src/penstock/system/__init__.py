"""Facts of the machine and of this process: memory, cores, signals, garbage collection, helper processes."""
