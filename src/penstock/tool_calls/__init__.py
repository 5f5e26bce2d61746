"""Tool-call syntaxes and their parsers: one module for each way in which a family of models writes tool calls.

A module has the signs by which its chat templates are recognised, the writer of calls in a prompt, the grammar that
constrains them, and the incremental tool-call parser. `prompt` and `stream` use this package; it knows `flow` and
`grammar` only.

registry         all syntaxes, and the one of a chat template
syntax           the interface of a syntax
hermes           <tool_call>{"name": …, "arguments": {…}}</tool_call>
generic          the same, for models whose chat template has no tools
llama3_json      {"name": …, "parameters": {…}}
mistral          [TOOL_CALLS]name[ARGS]{…}, and its older form
phi4, nemotron   lists of calls between markers
functionary      <function=name>{…}</function>
gemma            call:name{key:value,…}, and gemma_schema: the grammar of its arguments
json_calls       base of the syntaxes with JSON objects and lists of them
named_calls      base of the syntaxes with a name before JSON arguments
argument_schema  the schemas that arguments are held to
call_stream      the calls of one response, passed on while they are parsed
json_reader      incremental JSON
text_buffer      text that arrives in pieces, for incremental parsers
"""
