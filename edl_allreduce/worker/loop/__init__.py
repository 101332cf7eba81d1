"""The elastic loop: plans, rings, steps. It needs no framework, which a contract of import-linter keeps true.

engine          one worker's training, across all its rings
assemble        the one place that makes an engine
orders          what the training thread hears and says
steps           one step as it passes through, and who takes part in it
state           how far training is; `journal`: what is remembered besides the variables
agreement       from which state a ring goes on
feeding         records for this ring and the one after it
evaluations     when one is due, and how ranks share it
checkpointing   when the state is kept
observers       callbacks and curves
left_out        bad records; `not_finite`: losses that are NaN
pauses          where the time between two rings goes
diary           what the audit reads
"""
