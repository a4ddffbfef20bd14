"""Every stage's output of a tiny model, and what those outputs would show.

Owns the stages and their comparison. Knows nothing of GGUF or of Fornax.
"""

import numpy as np
import torch

from tiny_models import Tiny, config_head_dim, plain_frequencies, unseeded_model


def activations(model: torch.nn.Module, tokens: list[int]) -> dict[str, np.ndarray]:
    """Each stage's output, `[tokens, width]`, in the order in which it is computed."""
    stages = {"embedding": model.model.embed_tokens}
    stages |= {f"block.{i}": layer for i, layer in enumerate(model.model.layers)}
    stages |= {"final_norm": model.model.norm, "logits": model.lm_head}
    seen: dict[str, np.ndarray] = {}

    def keep(stage):
        def hook(_module, _inputs, output):
            hidden = output[0] if isinstance(output, tuple) else output
            seen[stage] = hidden[0].detach().numpy().copy()
        return hook

    hooks = [module.register_forward_hook(keep(stage)) for stage, module in stages.items()]
    model(torch.tensor([tokens]), use_cache=False)
    for hook in hooks:
        hook.remove()
    assert list(seen) == list(stages)
    return seen


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """The greatest difference in a row over the row's greatest magnitude; worst row."""
    return (np.abs(found - expected).max(-1) / np.abs(expected).max(-1)).max().item()


def report_noise(model: torch.nn.Module, tokens: list[int]) -> None:
    """How far float32 is from float64: what rounding alone takes of a tolerance.

    (transformers computes the norms in float32 in either case.)
    """
    single = activations(model, tokens)
    double = activations(model.to(torch.float64), tokens)
    model.to(torch.float32)
    worst = max(relative_error(single[stage], double[stage]) for stage in single)
    print(f"  float32 against float64, worst stage: {worst:.1e}")


def report_sensitivity(tiny: Tiny, model: torch.nn.Module, tokens: list[int]) -> None:
    """The change of the logits under mistakes that a loader can make: each must show."""
    right = activations(model, tokens)["logits"]
    for mistake, spoil in mistakes(model).items():
        wrong = unseeded_model(tiny)
        wrong.load_state_dict(model.state_dict())
        spoil(wrong)
        error = relative_error(activations(wrong, tokens)["logits"], right)
        print(f"  {mistake}: logits differ by {error:.1e}")
        assert error > 3e-3, f"{tiny.name} would not show the mistake: {mistake}"


def mistakes(model: torch.nn.Module) -> dict:
    first, config = model.model.layers[0], model.config
    # Gemma 3 has frequencies for each kind of block.
    frequencies = next(name for name, _ in model.model.rotary_emb.named_buffers()
                       if name.endswith("inv_freq"))
    found = {
        "rms_norm_eps 1e-5": set_epsilon,
        "RoPE frequencies 10 % off but the first": lambda m: scale_frequencies(m, frequencies),
        "final norm without weight": lambda m: m.model.norm.weight.fill_(
            0 if config.model_type == "gemma3_text" else 1),
    }
    if hasattr(first.self_attn, "k_proj"):
        found["RoPE pairs of the other kind"] = each(unpermute)
        found["KV heads swapped"] = each(swap_kv_heads)
    if hasattr(first.self_attn, "q_norm"):
        found["QK-norm without weights"] = each(plain_qk_norm)
    if hasattr(first.self_attn, "sinks"):
        found["no sinks"] = each(lambda layer: layer.self_attn.sinks.fill_(-1e9))
    if getattr(config, "sliding_window", None):
        found["no window"] = widen
        found["a window wider by one"] = lambda m: widen(m, config.sliding_window + 1)
    if any("bias" in name for name, _ in model.named_parameters()):
        found["no biases"] = clear_biases
    if config.rope_parameters.get("rope_type", "default") != "default":
        found["RoPE as it was before it was stretched"] = lambda m: (
            m.model.rotary_emb.inv_freq.copy_(plain_frequencies(config)))
    if config.rope_parameters.get("mscale_all_dim"):
        found["scores not scaled by YaRN"] = each(plain_scale)
    elif config.rope_parameters.get("rope_type") == "yarn":
        found["YaRN's magnitude 1"] = lambda m: setattr(m.model.rotary_emb, "attention_scaling", 1)
    return found | mistakes_with_experts(model.model.layers[-1].mlp)


def mistakes_with_experts(mlp: torch.nn.Module) -> dict:
    found, router = {}, getattr(mlp, "gate", None)
    if getattr(router, "norm_topk_prob", False):
        found["expert weights not normalised"] = each_router("norm_topk_prob", False)
    if hasattr(router, "routed_scaling_factor"):
        found["expert weights not scaled"] = each_router("routed_scaling_factor", 1.0)
    if hasattr(router, "topk_group"):
        found["all groups open"] = each_router("topk_group", 4)
    if hasattr(router, "e_score_correction_bias"):
        found["no bias on the choice"] = each(
            lambda layer: layer.mlp.gate.e_score_correction_bias.zero_()
            if hasattr(layer.mlp, "gate") else None)
    if hasattr(mlp, "shared_expert_gate"):
        found["shared expert under no gate"] = each(
            lambda layer: layer.mlp.shared_expert_gate.weight.zero_())
    return found


def each(edit):
    return lambda m: [edit(layer) for layer in m.model.layers]


def each_router(attribute, value):
    return each(lambda layer: setattr(layer.mlp.gate, attribute, value)
                if hasattr(layer.mlp, "gate") else None)


def set_epsilon(m):
    for module in m.modules():
        for attribute in ("variance_epsilon", "eps"):
            if hasattr(module, attribute):
                setattr(module, attribute, 1e-5)


def scale_frequencies(m, name):
    getattr(m.model.rotary_emb, name)[1:] *= 1.1


def unpermute(layer):
    attention = layer.self_attn
    half = lambda w: w.unflatten(0, (-1, 2, config_head_dim(attention.config) // 2))
    for w in (attention.q_proj.weight, attention.k_proj.weight):
        w.copy_(half(w).transpose(1, 2).reshape(w.shape))


def swap_kv_heads(layer):
    attention = layer.self_attn
    for w in (attention.k_proj.weight, attention.v_proj.weight):
        heads = attention.config.num_key_value_heads
        w.copy_(w.unflatten(0, (heads, -1)).flip(0).reshape(w.shape))


def plain_qk_norm(layer):
    plain = 0 if layer.self_attn.config.model_type == "gemma3_text" else 1
    layer.self_attn.q_norm.weight.fill_(plain)
    layer.self_attn.k_norm.weight.fill_(plain)


def widen(m, window=512):
    m.config.sliding_window = window
    each(lambda layer: setattr(layer.self_attn, "sliding_window", window))(m)


def clear_biases(m):
    for name, weight in m.named_parameters():
        if "bias" in name:
            weight.zero_()


def plain_scale(layer):
    layer.self_attn.scaling = layer.self_attn.qk_head_dim ** -0.5
