"""What the commands do, callable from Python: check, explain, export, quantize, bench, stress, noise and the rest.

`settings` is what a user asks for. A task opens, runs and hands on what the rooms below do; it prints nothing.
"""
