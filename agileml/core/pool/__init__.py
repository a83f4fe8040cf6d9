"""One pool of bundles, for SSP and ASP: a worker that is done with one draws the next, so a fast one computes more.

The bundles of a clock, and how each is counted, are those of fixed shares; only who computes which is another matter.
`bundles` is the pool, `server` hands it out where partition 0 is, `worker` computes one bundle after the other.
"""
