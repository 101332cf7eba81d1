"""What the controller of TrainingJobs decides, as pure functions with a reason for each answer.

    reconcile(wish, known, now) -> actions and one status

`reconcile` what is to be done for one job, `status` how it is told, `mail` what controller and master write
to each other, `lease` who of several controllers may act, `survey` the cluster as the autoscaler sees it,
`inquiry` what there is and what is asked for, in one line.
"""
