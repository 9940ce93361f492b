"""Analysis of trained models: the rank of the attention, and what each head attends to."""
