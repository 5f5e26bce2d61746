"""Speculation: tokens that are proposed before the model has drawn them, and verified in one step. Proposers, and what
decides how much of a proposal is drafted; no forward pass of the target.

proposer        the protocol of proposers
registry        proposers by the name in the setting
lookup          proposes what followed the same tokens before: in the prompt, the output or an earlier output
ngram_index     where tokens have occurred before
output_store    recent outputs, for lookups of the same tenant
draft_model     proposes what a smaller model draws
filled_blocks   which KV blocks a draft model has computed
chain_proposer  proposes what an EAGLE head or an MTP layer drafts from the target's hidden states
medusa_proposer proposes what Medusa heads draft from one hidden state
heads           EAGLE, Medusa and MTP: readers of their checkpoints, and what they compute
draft_length    how many of the proposed tokens are worth their price
drafter         puts drafts into the slots of a step's rows

A drafted token is right if it equals the token that the model draws at its position. Draws depend on the request and
the position alone (`penstock.sample`), so the output is the same with and without speculation. Proposers run where the
forward pass runs; the scheduler says how many tokens may be drafted.
"""
