"""Constraints on the output, from what a request specifies to the tokens that may come next. Frontend and engine both
use this package; llguidance is loaded with the first constraint.

constraint_grammar       Constraint -> a grammar in llguidance's notation
lark                     parts of such a grammar: literals, JSON schemas, rules
ebnf                     EBNF (llama.cpp's GBNF) -> Lark
no_op_keywords           removes keywords without effect from a JSON schema
close_objects            closes the objects of a JSON schema to properties that they do not name
unenforceable_keywords   removes keywords that cannot be enforced, for tools that are not strict
compiler                 grammar and vocabulary -> a matcher, or an error with the reason
checker                  the frontend's check that a constraint compiles within bounds
check_process            the process that compiles for the checker, and that a hostile constraint may hang or crash
grammar_cache            the engine's compiled grammars, and a matcher for each sequence
"""
