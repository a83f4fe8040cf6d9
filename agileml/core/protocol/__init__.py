"""The words that controller and machines share: messages, commands, inputs, the view and the durable record.

All are frozen dataclasses without behaviour, so a module that only reads them may be changed without knowing the rest.
Begin with `view` (the owners, backups and workers), then `messages`, in the order in which a clock uses them.
"""
