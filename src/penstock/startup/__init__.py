"""How engines start: settings checked before torch is imported (`preflight`), the machine shared out among several
(`sharing`), imports and devices prepared (`bytecode`, `gpu_warmup`, `process_tuning`, `torch_process`), and the engine
itself decided, loaded and put together (`build`). `server_models` does this for all models of a server, whose files
`find_models` finds, and for those that come later; nothing else here runs once the engine is up.
"""
