"""Looking into trained models: is the attention low rank, and what does each head look at?"""
