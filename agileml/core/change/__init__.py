"""Membership changes: their triggers, plans, copies and progress.

Everything here is pure: `triggers` says why a change must begin, `change_plan` computes the next view and the fetches
that make it true, `short_notice` decides between moving and rolling back. Begin with `change_plan.plan_change`;
`controller` drives a change from there.
"""
