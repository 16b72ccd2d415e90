"""What the measured facts mean. No arrays, no models: a finished run can be judged again.

`policy` is what is acceptable, `verdict` holds the facts against it, `findings` says what a verdict must not hide,
`variations` judges other batches, lengths, settings and edge cases. `diff/` compares two runs.
"""
