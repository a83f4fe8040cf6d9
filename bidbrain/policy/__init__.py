"""Policies: each decides which machines to hold; `registry` names them."""
