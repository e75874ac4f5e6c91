"""What is measured and planned with the kernels, the theory and a pair of models, for the command line."""
