"""The master's half as a pure machine: `machine.handle(state, event, now) -> (state, effects)`.

state       what a master knows
inbox       what can happen to it, and what it wants done
lifecycle   the table of phases
machine     the one door
turn        what one event makes of a state, while it is being made
admission   who may have a part in it
keeping     workers: slots, ids, relaunch, scaling, refusals, evictions
ring        one kind of work: a ring that trains, led by `core.membership`
queue       the other kind: tasks that workers pull (evaluation, prediction)
finishing   who writes the result, and how the job ends
pacing      workers that are slow
timing      where the time goes
asleep      a master that was held up itself
talk        how much one worker may have people told
queries     what people are shown
invariants  what must hold after every event; tests ask all the time
"""
