"""A policy that drives the instances of a running job, on a replayed market or on a cloud.

`cloud` and `job` are the protocols of a market and of the job, `journal` holds every intention and event, `state` folds
it, `decide` and `guards` are pure, and `service` is the loop. A new cloud implements `cloud.Cloud` and
touches nothing else; begin with `service.py`.
"""
