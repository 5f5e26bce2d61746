"""From generated tokens to the text that the client sees. Text is passed on once no later token can change it.

active_request  one request that the engine works on: its Submits, its choices
choice          one choice: Deltas in, Chunks out
output_parser   splits text into reasoning, answer and tool calls
stops           stop strings
scored          a choice of a request that generates nothing and scores its prompt
"""
