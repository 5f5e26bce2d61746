"""How an engine starts: settings checked before torch is imported (`preflight`), imports and devices prepared
(`bytecode`, `gpu_warmup`, `process_tuning`), and the engine itself decided, loaded and put together (`build`, the only
module here that imports torch at its top). Nothing here runs once the engine is up.
"""
