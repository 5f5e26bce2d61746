"""The APIs that clients speak, a package each, independent of each other. Modules beside the packages are what they
share (fields, messages, logprobs, the response store) and the routes of Penstock's own (capacity, tokenizer); above
them is `model_routes`, since OpenAI's and Anthropic's GET /v1/models have the same path."""
