"""From tokens to what the client may see: text that is whole, and that no stop string can take back.

answer                             one choice: Deltas in, Chunks out
parts                              reasoning, text and tool calls told apart
calls, json_text, gemma_text       tool calls, as they are being written
stops                              stop strings
tape                               text that arrives in pieces, for the parsers above
"""
