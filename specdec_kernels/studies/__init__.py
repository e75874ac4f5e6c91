"""Measurements and plans from the kernels, the theory and a pair of models, for the command line."""
