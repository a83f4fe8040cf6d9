"""How many GPUs, how many parameter servers, which minibatch (Zou et al. 2017).

Begin with `rules.py`, one equation a function; `config.py` is the file that `proteus size` reads. Nothing else depends
on this folder.
"""
