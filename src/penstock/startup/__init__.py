"""How an engine starts: settings checked before torch is imported (`preflight`), imports and devices prepared
(`bytecode`, `gpu_warmup`, `process_tuning`, `torch_process`), and the engine itself decided, loaded and put together
(`build`). Nothing here runs once the engine is up.
"""
