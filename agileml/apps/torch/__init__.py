"""Data-parallel training of any torch.nn.Module: the application `torch`.

Begin with `module.TorchModule`, the application; `flat` lays a module's tensors out in tables, `step` computes
gradients (`cuda` and `linear` hold faster ways to the same), `data` deals items to units.
"""
