"""Collapsed Gibbs sampling for LDA (Griffiths and Steyvers 2004, equation 5), by one machine.

A token of word w in document d gets topic k with a probability proportional to
    (n_dk + alpha) (n_wk + beta) / (n_k + V beta)
where the counts leave out the token itself. `dense` weighs all topics in vector lanes; `sparse` looks only at those
that the word or the document has, which is faster where topics are many; `choice` says when. Begin with `units`, which
sweeps over the tokens of units. `mixture` fits the topics of a new document.
"""
