"""Both models on the same rows, their differences reduced to small facts that merge in any order. Nothing is judged.

`feed` plans how columns reach inputs, `pair` which outputs belong together, `call` asks a model, `observe` turns
answers into facts through `metrics/`. `engines/` says where that happens, `variations/` what is asked beside the data.
"""
