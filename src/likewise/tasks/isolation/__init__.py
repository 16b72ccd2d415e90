"""A process for the models, which may crash, hang or be killed: the supervisor, the worker, and what they say."""
