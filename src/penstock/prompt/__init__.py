"""From messages to the text the model was trained to continue, and what that says of the answer.

chat_format         how one model is spoken to, and how its answer is to be read
families        which family a chat template is of: data
conversation    messages as a family's template wants them
template        the template itself: cheap renderings here, others in the process of `worker`
run             one rendering: its budget and its failures; `sandbox`, `meter` and `instrument` bound it
language        the grammar of a whole answer; gemma_schema for Gemma's own notation
"""
