"""The controller of TrainingJobs: hands and ears of `core/controller/` and `core/autoscale/`.

`mirror` what the API server has, `jobs` one TrainingJob with what belongs to it, `planning` the autoscaler's
view of all of them, `election` who of several controllers acts, `hands` every write, `rounds` one look at
everything and what follows, `process` the process around it.
"""
