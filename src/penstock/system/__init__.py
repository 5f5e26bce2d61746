"""Facts and mechanisms of the operating system and of this process: memory and cores, signals, garbage collection,
helper processes and thread pools, who owns the process, progress on a terminal. Nothing here knows about models,
requests or engines.
"""
