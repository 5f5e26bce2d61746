"""The device side of a step: plans in, results out. Backends, and the parts they are composed of.

backend               what backends have in common to be built: BackendConfig, BuiltBackend
torch_backend, native_backend, cuda_backend    one kind of device each: forward pass and sampler
slot_tensors, slot_arrays                      permanent rows of sequences, token ids and block tables: torch, numpy
inputs, cuda_inputs   from rows of a plan to a `kernels.interface.Batch`
step_outputs          constraints, prompt log-probabilities, embeddings, and steps under way (launched_step, readback)
native_model          a recorded model, as the native backend runs it
decode_graphs, chunk_graphs, graph_capture     CUDA graphs of small steps and of steps with prompt chunks
accepted_draws, draft_audit, torch_audit       steps with drafts: which draws count; the audit
cuda_drafts, cuda_proposer, cuda_speculation   drafts on a GPU, by cuda_chain, cuda_medusa, cuda_draft_model
cuda_startup, warm_up                          precompilation, warm-up steps and graph capture at the start
memory                size of the KV cache
loading, native_pages                          packed weights and KV pages of the native backend
torch_loading         dense weights and KV pages of the others

StepPlan ─► slots (changes) ─► inputs (Batch) ─► model ─► logits ─► sampler ─► StepResult
              ▲                                    │                   │           ▲
              │                                    └──► pooling ───────┼───────────┘
              └───────────── drawn tokens, without the host ───────────┘
"""
