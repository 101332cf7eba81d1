"""Who is in the ring: a pure machine. Events in, new state and instructions out.

    state, actions = machine.handle(state, event, now)

A *plan* is a numbered list of members in rank order. Deaths re-plan at once; arrivals are gathered so that
all that are ready join in one re-form; a draining member leaves at a step boundary. A generation is
published once and never changes; whatever carries an older number is ignored.

What a worker owes: it enters every plan that seats it, newest only; for a generation that it gives up, also
one that it never entered because the order to abort was faster, it says Out with that generation; after
Done it stays and follows plans until Finish.
"""
