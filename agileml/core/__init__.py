"""The engine as pure state machines: messages and events go in, commands come out, and time is an argument.

Nothing here opens a socket, a file or a clock, so any schedule of joins, notices and deaths runs in a test in
milliseconds. Begin with `protocol` (the messages and the view), then follow a clock: `node` pulls, computes and pushes,
`parameters` adds up and applies, `cuts` says when to back up. `controller` and `change` decide what happens when
machines come and go, and `stage` which machines serve; `compute` runs user code, `exchange` holds the ways to add up. A
new optimizer or a new rule of placement needs none of the others.
"""
