"""Model shapes for random weights, as transformers' Qwen2 configuration (stdlib only)."""

from __future__ import annotations

from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    # Qwen2-7B-Instruct, its config.json.
    "qwen2-7b": {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
    },
    # Small enough for two ranks on one core; large enough to learn to copy an argument.
    "tiny": {
        "vocab_size": 640,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        # With the usual 0.02 the logits at this width would be too small to predict any token well.
        "initializer_range": 0.1,
        "tie_word_embeddings": True,
    },
}
