"""A policy that drives the instances of a running job, on a replayed market or on a cloud.

`cloud` and `job` are the protocols of a market and of the job; `journal` holds every intention and event, and `state`
folds it. `decide`, `guards` and `estimators` are pure; `service` is the loop, `steps` carries its decisions out, `held`
follows the instances, and `dry_run` makes the first decision without buying. `replay` is a cloud that plays recorded
prices or capacity. A new cloud implements `cloud.Cloud` and changes nothing in this package; begin with `service.py`.
"""
