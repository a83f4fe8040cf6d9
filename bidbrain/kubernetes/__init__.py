"""Kubernetes as BidBrain's market: a RayCluster of KubeRay, whose worker groups on spot nodes are the pools.

There is no bidding and no price to ask for: the config says what a pod of a group costs. `kuberay` scales the groups,
`notices` reads taints and deletions, `manifest` writes what `kubectl apply` takes. `book` is pure and holds the rule
by which a group is scaled; `api` is the only module that speaks to a server. Begin with `kuberay.py`.
"""
