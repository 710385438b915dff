"""A model and an adapter that are made on the spot: a configuration for random weights, and random low-rank matrices.

What is cached does not depend on what a model knows, so nothing is fetched from a model hub, and no tokenizer is needed:
prompts are token ids.
"""

import json

# Kernels for CPUs want heads of 64.
VOCABULARY, HIDDEN, LAYERS, HEADS = 32000, 256, 2, 4
RANK = 8

PLAIN = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def write_model(folder):
    """The configuration of a Llama of two layers. The engine fills in the weights (`load_format="dummy"`)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(PLAIN))
    return folder


def write_adapter(folder):
    """A LoRA adapter of that model."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    targets = ["q_proj", "v_proj"]
    adapter = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": targets, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**adapter, "task_type": "CAUSAL_LM"}))
    torch.manual_seed(0)
    tensors = {}
    for layer in range(LAYERS):
        for target in targets:
            name = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, HIDDEN) * 0.01
            tensors[f"{name}.lora_B.weight"] = torch.randn(HIDDEN, RANK) * 0.01
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    return folder
