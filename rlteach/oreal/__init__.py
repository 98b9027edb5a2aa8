"""The mathematics of OREAL (arXiv 2502.06781) as pure functions of numbers and tensors.

Nothing here knows a model, a tokenizer or a file. Equation numbers are those of the paper's v1.
"""
