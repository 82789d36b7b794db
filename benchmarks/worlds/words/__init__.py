"""The makers of the lab's models: pupils, training, shipping and the measures of choosing; see README.md."""
