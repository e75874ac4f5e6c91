"""What a call of an op is, for ops and for backends: neither of these imports the other."""
