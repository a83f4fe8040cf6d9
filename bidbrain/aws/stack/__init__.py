"""The stack of a job on EC2: one CloudFormation template, and the parts that are made beside it.

`template.yaml` says what a stack consists of and who may do what, `parts` decides which step comes next, `up` and
`down` take the steps, `facts` and `checks` look before money is spent. A right, a tag or a setting of a resource is
changed in the template alone. Begin with `template.yaml`, then `parts.py:steps`.
"""
