"""The account of one job: its allocations, its ledger, and the audit of that ledger.

`account` turns events into ledger lines, `ledger` reads and writes them, `rebill` computes every amount again from the
prices alone. Amounts come from `billing`; nothing here knows how a policy decides. Begin with `account.py`.
"""
