"""Writes the model as a Q8_0 GGUF file, and reads it back. It knows the file's keys and tensor names, not training."""

import json

import gguf
import numpy
import torch

import tokenizer as tokens
from chat_format import TEMPLATE

_LAYER = {
    "attention_norm": "attn_norm", "attention.q": "attn_q", "attention.k": "attn_k", "attention.v": "attn_v",
    "attention.out": "attn_output", "attention.q_norm": "attn_q_norm", "attention.k_norm": "attn_k_norm",
    "mlp_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}


def tensor_name(parameter):
    """`layers.3.attention.q.weight` → `blk.3.attn_q.weight`."""
    if parameter.startswith("layers."):
        _, index, rest = parameter.split(".", 2)
        return f"blk.{index}.{_LAYER[rest.removesuffix('.weight')]}.weight"
    return {"embedding.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}[parameter]


def write(path, model, tokenizer):
    """Writes matrices as Q8_0 and norms as F32, with all metadata."""
    writer = gguf.GGUFWriter(path, "qwen3")
    _add_general(writer)
    _add_sizes(writer, model.config)
    _add_vocabulary(writer, tokenizer, model.config.vocabulary)
    for name, parameter in model.state_dict().items():
        values = parameter.detach().float().cpu().numpy()
        if values.ndim == 2:
            blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(tensor_name(name), blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(tensor_name(name), values.astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load(path, model):
    """Fills the model with the file's decoded weights."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    state = {}
    for name, parameter in model.state_dict().items():
        tensor = tensors.pop(tensor_name(name))
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(parameter.shape)
        state[name] = torch.from_numpy(values.copy())
    if tensors:
        raise ValueError(f"{path}: tensors that the model does not have: {sorted(tensors)}")
    model.load_state_dict(state)


def _add_general(writer):
    writer.add_type("model")
    writer.add_name("Fornax Mini")
    writer.add_description("A small demonstration model, trained from scratch on generated text.")
    writer.add_size_label("7M")
    writer.add_license("MIT OR Apache-2.0")
    writer.add_languages(["en"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_sampling_temp(0.7)
    writer.add_sampling_top_p(0.95)


def _add_sizes(writer, config):
    writer.add_vocab_size(config.vocabulary)
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(config.feed_forward)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_width)
    writer.add_value_length(config.head_width)
    writer.add_rope_dimension_count(config.head_width)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_layer_norm_rms_eps(config.epsilon)


def _add_vocabulary(writer, tokenizer, size):
    learned = json.loads(tokenizer.to_str())["model"]
    names = [tokenizer.id_to_token(index) for index in range(size)]
    kinds = {**dict.fromkeys(tokens.CONTROL, gguf.TokenType.CONTROL),
             **dict.fromkeys(tokens.USER_DEFINED, gguf.TokenType.USER_DEFINED)}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in learned["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(names)
    writer.add_token_types([kinds.get(name, gguf.TokenType.NORMAL) for name in names])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokenizer.token_to_id("<|im_end|>"))
    writer.add_pad_token_id(tokenizer.token_to_id("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
