"""How hidden states and log-probabilities are computed: packing, tree attention, incremental reading."""
