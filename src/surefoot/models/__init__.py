"""Reward models: encoding, heads, published checkpoint families, and the aggregation of step scores."""
