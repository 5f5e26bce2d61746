"""Safety rules of the operator: what may neither go into a model nor come out of it. See docs/SAFETY.md.

pattern          RE2 syntax: the longest text that a pattern matches, and the pattern of what may become a match
matcher          the rules of one tenant and direction as compiled expressions: finds matches, and text to hold back
rules            the rules of the settings, checked and compiled once at start
request_texts    the texts of a request that rules look at
choice_filter    the rules of one choice of an answer (`stream.output_filter` applies it to chunks)
piece_filter     text that is spelled differently from what it reads as
json_text        JSON's escapes, so that rules see through `\\u0041`
spelling         invisible characters, and the spellings of a term that read the same
moderation_hook  asks an HTTP endpoint or a Python function
safety           checks requests, filters answers, moderates texts; counts and reports hits
metrics          what was counted, for Prometheus

RE2 is imported when there are rules. The rooms of HTTP clients and servers are elsewhere: clients are injected.
"""
