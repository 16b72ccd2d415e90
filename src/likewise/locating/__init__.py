"""Where in a graph a difference comes in: the values inside of both models, put side by side node by node."""
