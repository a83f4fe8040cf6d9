"""BidBrain decides which machines to hold, judged by the expected cost per unit of work.

`policy` decides, `simulate` plays a policy against recorded markets, `live` drives one for a running job, `accounts`
and `billing` say what it cost. Every room can be used without `agileml`; a new policy needs `policy.base` alone.
Begin with `policy/base.py` (what a policy is asked and answers), then `simulate/simulator.py` (what a simulation is).
"""

from bidbrain.files.compiled_code import name_place

name_place()
