"""Knowledge of scikit-learn estimators, live or from a file: what they take, what they answer, what they are.

`loading` gets them out of files, `views` lists the ways of asking one, `answering` asks several ways at the
cost of one, `describing` says what it is; `steps` finds its parts and `gaps` what it makes of missing text, for its
export. Nothing here imports scikit-learn before it is used.
"""
