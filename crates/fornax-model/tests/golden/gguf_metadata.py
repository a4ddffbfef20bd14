"""The dimensions of a tiny model under GGUF's keys.

Owns which key says what. Knows nothing of weights or of Fornax.
"""

import gguf

from tiny_models import Tiny, config_head_dim

# What the converter multiplies DeepSeek's `mscale_all_dim` by.
LOG_MULTIPLIER = 0.1


def write_metadata(writer: gguf.GGUFWriter, tiny: Tiny) -> None:
    config, head_dim = tiny.config, config_head_dim(tiny.config)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if tiny.name != "tiny-deepseek3":
        writer.add_head_count_kv(config.num_key_value_heads)
    write_rope(writer, tiny)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if tiny.architecture == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head_dim)
    if tiny.architecture == "deepseek2":
        write_latent(writer, tiny)
    elif head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if tiny.architecture in ("gemma3", "gpt-oss") or tiny.name == "tiny-mistral":
        writer.add_sliding_window(config.sliding_window)
    write_experts(writer, tiny)


def write_rope(writer: gguf.GGUFWriter, tiny: Tiny) -> None:
    rope = tiny.config.rope_parameters
    if "full_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        if "mscale_all_dim" in rope:
            log = LOG_MULTIPLIER * rope["mscale_all_dim"]
            writer.add_rope_scaling_yarn_log_mul(log)


def write_latent(writer: gguf.GGUFWriter, tiny: Tiny) -> None:
    """tiny-deepseek2 is as old files are: lengths of expanded heads, no head of the cache."""
    config = tiny.config
    expanded = config.qk_nope_head_dim + config.qk_rope_head_dim
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    if config.q_lora_rank is None:
        writer.add_key_length(expanded)
        writer.add_value_length(config.v_head_dim)
        return
    writer.add_head_count_kv(1)
    writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(expanded)
    writer.add_value_length_mla(config.v_head_dim)


def write_experts(writer: gguf.GGUFWriter, tiny: Tiny) -> None:
    config = tiny.config
    experts = {"qwen3moe": "num_experts", "qwen2moe": "num_experts",
               "gpt-oss": "num_local_experts", "deepseek2": "n_routed_experts"}
    if tiny.architecture not in experts:
        return
    writer.add_expert_count(getattr(config, experts[tiny.architecture]))
    writer.add_expert_used_count(config.num_experts_per_tok)
    hidden = getattr(config, "moe_intermediate_size", config.intermediate_size)
    writer.add_expert_feed_forward_length(hidden)
    if tiny.architecture == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if tiny.architecture == "deepseek2":
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    if tiny.name == "tiny-deepseek3":
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
