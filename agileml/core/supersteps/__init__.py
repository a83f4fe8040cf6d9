"""Supersteps (ElasticBSP): each worker makes its own number of iterations, then all meet.

Inside a superstep every minibatch is a step of its own, taken as it arrives. `shard` takes the steps, `planner` chooses
how many minibatches each worker gets, `server` holds workers that are early at the barrier, `worker` goes through its
minibatches. The log has every decision, and `agileml.core.stepwise` computes the same bits from it in one process.
"""
