"""Loads the attention layers of transformers' modules by the names of their parameters, and compares outputs, maps and gradients of the inputs with those of the module."""
import numpy as np
import pytest

import polyhead

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WIDTH, HEADS, TOKENS = 24, 4, 7


def text_config(kind, **more):
    return kind(hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=2, intermediate_size=16, num_hidden_layers=1, vocab_size=9,
                max_position_embeddings=16, attn_implementation="eager", **more)  # fmt: skip


def llama_like(model, config):
    """Returns the attention of a decoder's first layer, and a function that computes its output and maps from hidden states."""
    decoder = model(config).eval()
    attention = decoder.layers[0].self_attn

    def run(x):
        positions = torch.arange(x.shape[1])[None]
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)[None, None]
        return attention(x, position_embeddings=decoder.rotary_emb(x, positions), attention_mask=mask)[:2]

    return attention, run


def without_mask(attention, **options):
    return attention, lambda x: attention(x, **options)[:2]


def module(name):
    t = transformers
    if name == "llama":
        return llama_like(t.LlamaModel, text_config(t.LlamaConfig))
    if name == "llama with biases":
        return llama_like(t.LlamaModel, text_config(t.LlamaConfig, attention_bias=True))
    if name == "mistral":
        return llama_like(t.MistralModel, text_config(t.MistralConfig, head_dim=10))
    if name == "qwen2":
        return llama_like(t.Qwen2Model, text_config(t.Qwen2Config))
    if name == "gpt_oss":
        # By default gpt_oss scales rotary frequencies by YaRN. rope_type "default" switches that off.
        return llama_like(t.GptOssModel, text_config(t.GptOssConfig, head_dim=6, num_local_experts=2, num_experts_per_tok=1, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}))
    if name == "bart":
        from transformers.models.bart.modeling_bart import BartAttention

        return without_mask(BartAttention(WIDTH, HEADS, config=t.BartConfig(attn_implementation="eager")))
    if name == "whisper":
        from transformers.models.whisper.modeling_whisper import WhisperAttention

        return without_mask(WhisperAttention(WIDTH, HEADS, config=t.WhisperConfig(attn_implementation="eager")), output_attentions=True)
    if name == "clip":
        model = t.CLIPVisionModel(t.CLIPVisionConfig(hidden_size=WIDTH, num_attention_heads=HEADS, intermediate_size=16, num_hidden_layers=1, image_size=8, patch_size=4, attn_implementation="eager"))  # fmt: skip
        return without_mask(next(m for m in model.modules() if type(m).__name__ == "CLIPAttention"))
    raise AssertionError(name)


NAMES = {"llama": "llama", "llama with biases": "llama", "mistral": "llama", "qwen2": "llama", "gpt_oss": "llama", "bart": "bart", "whisper": "whisper", "clip": "bart"}


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_computes_what_the_module_computes(name):
    torch.manual_seed(5)
    attention, run = module(name)
    attention = attention.eval()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_(0, 0.3)
    state = {f"model.layers.0.self_attn.{key}": value.detach().numpy() for key, value in attention.state_dict().items()}
    layer = polyhead.load(state, heads=HEADS, prefix="model.layers.0.self_attn")
    assert layer.needs_rotary == (NAMES[name] == "llama") == layer.causal
    x = torch.randn(2, TOKENS, WIDTH, requires_grad=True)
    expected, weights = run(x)
    rotary = {}
    if layer.needs_rotary:
        rotary = {"rotary": polyhead.RotaryEmbedding(layer.config["head_width"], base=10000.0)(np.arange(TOKENS))}
    out, saved = layer.forward(x.detach().numpy(), **rotary)
    np.testing.assert_allclose(out, expected.detach().numpy(), atol=2e-5)
    np.testing.assert_allclose(saved.maps(), weights.detach().numpy(), atol=2e-5)
    d_out = torch.randn_like(expected)
    expected.backward(d_out)
    np.testing.assert_allclose(saved.backward(d_out.numpy()).query, x.grad.numpy(), atol=2e-4)


def encoder_layer(name):
    """Returns an encoder's first layer, its attention, a function that computes the attention's output and maps from hidden states, and the options for polyhead."""
    t = transformers
    sizes = dict(hidden_size=WIDTH, num_attention_heads=HEADS, intermediate_size=16, num_hidden_layers=1, vocab_size=9, max_position_embeddings=16, attn_implementation="eager")
    if name == "distilbert":
        layer = t.DistilBertModel(t.DistilBertConfig(dim=WIDTH, n_heads=HEADS, hidden_dim=16, n_layers=1, vocab_size=9, max_position_embeddings=16, attn_implementation="eager")).transformer.layer[0]
        return layer, layer.attention, lambda x: layer.attention(x)[:2], {}
    if name == "mpnet":
        encoder = t.MPNetModel(t.MPNetConfig(**sizes)).encoder
        torch.nn.init.normal_(encoder.relative_attention_bias.weight)
        bias = encoder.compute_position_bias(torch.zeros(2, TOKENS, WIDTH)).detach()
        attention = encoder.layer[0].attention.attn
        return encoder.layer[0], attention, lambda x: attention(x, position_bias=bias, output_attentions=True), {"bias": bias[:1].numpy()}
    model = t.ModernBertModel(t.ModernBertConfig(**sizes, attention_bias=name.endswith("biases"), layer_types=["full_attention"], pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2))  # fmt: skip
    layer = model.layers[0]
    angles = model.rotary_emb(torch.zeros(1, TOKENS, WIDTH), torch.arange(TOKENS)[None], "full_attention")
    half = WIDTH // HEADS // 2
    return layer, layer.attn, lambda x: layer.attn(x, position_embeddings=angles)[:2], {"rotary": polyhead.Rotary(*(part[0, :, :half].numpy() for part in angles))}


@pytest.mark.parametrize("name", ["distilbert", "mpnet", "modernbert", "modernbert, biases"])
def test_a_layer_of_an_encoder_computes_what_the_module_computes(name):
    torch.manual_seed(5)
    layer, attention, run, options = encoder_layer(name)
    layer = layer.eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0, 0.3)
    ours = polyhead.load({f"encoder.layer.3.{key}": value.detach().numpy() for key, value in layer.state_dict().items()}, heads=HEADS)
    assert ours.needs_rotary == ("rotary" in options) and not ours.causal
    x = torch.randn(2, TOKENS, WIDTH, requires_grad=True)
    expected, weights = run(x)
    out, saved = ours.forward(x.detach().numpy(), **options)
    np.testing.assert_allclose(out, expected.detach().numpy(), atol=2e-5)
    np.testing.assert_allclose(saved.maps(), weights.detach().numpy(), atol=2e-5)
    d_out = torch.randn_like(expected)
    expected.backward(d_out)
    np.testing.assert_allclose(saved.backward(d_out.numpy()).query, x.grad.numpy(), atol=2e-4)
    written = ours.state(name.split(",")[0], prefix="encoder.layer.3.")
    assert len(written) == len(attention.state_dict())
    for key, value in written.items():
        np.testing.assert_array_equal(value, layer.state_dict()[key.removeprefix("encoder.layer.3.")].numpy())


def test_a_layer_of_llama_without_rotary_positions_is_refused():
    attention, _ = module("llama")
    layer = polyhead.load({key: value.detach().numpy() for key, value in attention.state_dict().items()}, heads=HEADS)
    x = np.ones((1, 3, WIDTH), np.float32)
    for call in (layer, layer.forward, layer.frozen()):
        with pytest.raises(ValueError, match=r"layers of the layout llama rotate q and k by position; give rotary .*needs_rotary = False"):
            call(x)
    import copy

    assert copy.deepcopy(layer).needs_rotary
    layer.needs_rotary = False
    assert layer(x).shape == x.shape
    with pytest.raises(ValueError, match="cannot be set to True"):
        layer.needs_rotary = True
