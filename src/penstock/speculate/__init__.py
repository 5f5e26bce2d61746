"""Speculation: tokens that are proposed before the model has drawn them, and verified in one step. Proposers, and what
decides how much of a proposal is drafted; no forward pass of the target.

proposer      the protocol of proposers
lookup        proposes what followed the same tokens before: in the prompt, the output or an earlier output
ngram_index   where tokens have occurred before
output_store  recent outputs, for lookups of the same tenant
draft_length  how many of the proposed tokens are worth their price
drafter       puts drafts into the slots of a step's rows
heads         EAGLE, Medusa and MTP: readers of their checkpoints, and what they compute
head_proposer proposes what a head drafts from the target's hidden states

A drafted token is right if it equals the token that the model draws at its position. Draws depend on the request and
the position alone (`penstock.sample`), so the output is the same with and without speculation. Proposers run where the
forward pass runs; the scheduler says how many tokens may be drafted.
"""
