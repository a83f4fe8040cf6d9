"""The stack of a job on EC2: one CloudFormation template, and the parts that are made beside it.

`template.yaml` lists the parts of a stack and the rights of each role, `parts` decides which step comes next, `up` and
`down` take the steps, `facts` and `checks` look before money is spent. A right, a tag or a setting of a resource is
changed in the template alone. Begin with `template.yaml`, then `parts.py:steps`.
"""
