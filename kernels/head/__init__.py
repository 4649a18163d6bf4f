"""The loss of a model with many classes, as a language model's, without all logits in memory.

`heads` finds the linear layers that make logits, `logits` stands for what they give until somebody needs the numbers,
and `chunked` computes the cross-entropy of it, some rows at a time.
"""
