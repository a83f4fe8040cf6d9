"""Running user code: units are loaded, computed and checked here, on machines and in the sequential run alike.

`unit_computer` is the whole path from pulled blocks to contributions; `contract` checks what user code returns. Begin
with `unit_computer`; nothing here knows of messages or epochs.
"""
