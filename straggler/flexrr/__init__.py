"""FlexRR's RapidReassignment (thesis 3.3): a slow worker gives ranges of its iteration to helpers that are ahead.

Begin with `worker.py`, one worker as a state machine: events in, commands out, time is an argument. `protocol.py`
has the messages; parameters (table 3.1) may be changed without knowing the rest.
"""
