"""Embeddings: texts as vectors whose distance says how near the texts are in meaning."""
