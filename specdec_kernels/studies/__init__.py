"""What is measured, planned and drawn with the kernels, the theory and a pair of models, for the command line."""
