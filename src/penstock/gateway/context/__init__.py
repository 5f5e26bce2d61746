"""Context assembly: which parts of a request go into its prompt under a token budget, in which order, and a trace of
that. Ranking, cutting and history policies are pure functions over values; only `builder` and `ranker` ask models,
through `helper_models`.

    options ─► ranking ─► fit: documents, turns, placement ─► (summary ─► fit) ─► trace

texts          sentences and words of texts, the text of a message
control_tokens special tokens in documents, made plain text
prompt_model   counts tokens and renders prompts with one model's tokenizer and chat template
turns          turns of a conversation, and which of them a policy keeps
terms          the words of texts that a query asks for
passages       windows of sentences of a document, best first for a query
ranking        documents by usefulness: given scores, BM25
embeddings     documents by the embeddings of a served model
reranker       documents as a served chat model judges them, also for `/v1/rerank`
ranker         the ranking that a request chooses
helper_models  what other models are asked, at the cost of the request
documents      documents that fit, cut at sentence borders
placement      parts put together as messages
fit            the parts that fit the budget in real tokens
summary        dropped turns summarized by a served model
trace          what became of each part
builder        all of these for one request
budget         how the parts of a prompt share the context, for the planner
plan           what assembly would make of them, for the planner

A prompt keeps a stable prefix: system message with schema and pinned documents, then history, then what depends on the
last message. History is dropped in steps, so that consecutive prompts begin alike and the prefix cache hits.
"""
