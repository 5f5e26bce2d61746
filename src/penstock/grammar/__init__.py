"""Constraints made to work: from what a request says of its answer to the tokens it may go on with.

source.py     Constraint -> a grammar as llguidance reads it
neutral.py    a JSON schema less the keywords that say nothing
closing.py    a JSON schema whose objects have no room for properties that they do not name
ebnf.py       a grammar in the notation of llama.cpp -> Lark
relax.py      a JSON schema less the keywords that cannot be enforced, for tools that are not strict
compiler.py   that grammar and a vocabulary -> a matcher, or an error that says what is wrong
checker.py    the frontend's: is this a constraint that can be compiled, within bounds? Asks worker.py, in a
process
              of its own, which a hostile one may hang or crash
library.py    the engine's: compiled grammars, made in the background, and a matcher for each sequence

Frontend and engine both know this package; llguidance is loaded when the first constraint comes.
"""

from penstock.grammar.constraint_grammar import json_rule, lark_of, literal

__all__ = ["json_rule", "lark_of", "literal"]
