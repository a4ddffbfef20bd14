"""Every stage's output of a tiny model, and what those outputs would show.

Owns the stages and their comparison. Knows nothing of GGUF or of Fornax.
"""

import numpy as np
import torch

from tiny_models import Tiny, config_head_dim, plain_frequencies


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
        wrong = tiny.causal_lm(tiny.config).eval()
        wrong.load_state_dict(model.state_dict())
        spoil(wrong)
        error = relative_error(activations(wrong, tokens)["logits"], right)
        print(f"  {mistake}: logits differ by {error:.1e}")
        assert error > 3e-3, f"{tiny.name} would not show the mistake: {mistake}"


def mistakes(model: torch.nn.Module) -> dict:
    config = model.config
    half = lambda w: w.unflatten(0, (-1, 2, config_head_dim(config) // 2))
    layers = lambda m: m.model.layers

    def each(edit):
        return lambda m: [edit(layer) for layer in layers(m)]

    def set_epsilon(m):
        for module in m.modules():
            if hasattr(module, "variance_epsilon"):
                module.variance_epsilon = 1e-5

    def scale_frequencies(m):
        m.model.rotary_emb.inv_freq[1:] *= 1.1

    def unpermute(attention):
        for w in (attention.q_proj.weight, attention.k_proj.weight):
            w.copy_(half(w).transpose(1, 2).reshape(w.shape))

    def swap_kv_heads(attention):
        for w in (attention.k_proj.weight, attention.v_proj.weight):
            w.copy_(w.unflatten(0, (config.num_key_value_heads, -1)).flip(0).reshape(w.shape))

    def plain_qk_norm(attention):
        attention.q_norm.weight.fill_(1)
        attention.k_norm.weight.fill_(1)

    found = {
        "rms_norm_eps 1e-5": set_epsilon,
        "RoPE frequencies 10 % off but the first": scale_frequencies,
        "RoPE pairs of the other kind": each(lambda layer: unpermute(layer.self_attn)),
        "KV heads swapped": each(lambda layer: swap_kv_heads(layer.self_attn)),
        "final norm without weight": lambda m: m.model.norm.weight.fill_(1),
    }
    if hasattr(layers(model)[0].self_attn, "q_norm"):
        found["QK-norm without weights"] = each(lambda layer: plain_qk_norm(layer.self_attn))
    if hasattr(layers(model)[0].mlp, "gate"):
        found["expert weights not normalised"] = each(
            lambda layer: setattr(layer.mlp.gate, "norm_topk_prob", False))
    if config.rope_parameters["rope_type"] == "llama3":
        found["no rope_freqs.weight"] = lambda m: m.model.rotary_emb.inv_freq.copy_(
            plain_frequencies(config))
    return found
