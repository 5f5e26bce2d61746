"""From messages and tools to the prompt's text, by the model's own chat template, and the format of the output that
follows from it.

chat_format          how to talk to one model: renders prompts, determines the output format
template_messages    messages and tools as the chat template takes them
unparsed_arguments   arguments of past calls that are no JSON
reasoning            markers and switches of models that reason
answer_grammar       the grammar of a whole response
template             the chat template: cheap renderings here, others in the process of `render_process`
bounded_render       one rendering within a budget of work
sandbox              the Jinja environment, which bounds what a template can reach and do
jinja_internals      what the sandbox uses of Jinja beyond its documented API
template_meter       counts the work of a rendering
charge_insertion     puts charges into the template's syntax tree
"""
