"""PyTorch modules: out of a file (`loading`, `archives`), what they take (`describing`), what they give (`answering`).

torch is imported only inside functions.
"""
