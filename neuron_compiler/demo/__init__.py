"""What ``neuron-compiler demo`` does: two well-known models compiled, checked, timed and looked into."""
