"""Why two models differ, shown by experiment: change one thing, ask again, see whether the difference goes.

`driver` decides what is tried in which order, `case` is the failure opened up, `experiment` the one way a change is
run and compared, `probes/` the families of causes, `facts` what can be said without an experiment.
"""
