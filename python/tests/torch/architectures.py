"""Models of transformers by small random configurations, in f64."""

import torch
import transformers as hf

LAYERS = 8
SMALL = dict(vocab_size=96, hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=4, max_position_embeddings=64)
WIDE = dict(SMALL, intermediate_size=48)
GROUPED = dict(WIDE, num_key_value_heads=2, bos_token_id=1, eos_token_id=2, pad_token_id=0)
STILL = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
GPT = dict(vocab_size=96, n_embd=32, n_layer=LAYERS, n_head=4, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=1, eos_token_id=2)
PATCHES = dict(hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=4, image_size=16, patch_size=8, num_labels=5, **STILL)
TWO = dict(vocab_size=96, d_model=32, encoder_layers=LAYERS // 2, decoder_layers=LAYERS // 2, encoder_ffn_dim=48, decoder_ffn_dim=48)

ARCHITECTURES = {
    "Llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)),
    "Qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**GROUPED)),
    "Qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED, head_dim=8)),
    "Mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**GROUPED)),
    "Gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**GROUPED, head_dim=8)),
    "Gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**GROUPED, head_dim=8)),
    "Gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**GROUPED, head_dim=8)),
    "GPT-2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT)),
    "GPT-J": lambda: hf.GPTJForCausalLM(hf.GPTJConfig(**GPT, rotary_dim=4)),
    "GPT-Neo": lambda: hf.GPTNeoForCausalLM(
        hf.GPTNeoConfig(
            vocab_size=96, hidden_size=32, num_layers=LAYERS, num_heads=4, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
            attention_types=[[["global", "local"], LAYERS // 2]], resid_dropout=0, embed_dropout=0, attention_dropout=0,
        )
    ),
    "GPT-NeoX": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**WIDE)),
    "Phi": lambda: hf.PhiForCausalLM(hf.PhiConfig(**WIDE, resid_pdrop=0, embd_pdrop=0)),
    "Phi-3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**GROUPED)),
    "OPT": lambda: hf.OPTForCausalLM(hf.OPTConfig(**SMALL, ffn_dim=48, word_embed_proj_dim=32, dropout=0, attention_dropout=0)),
    "Bloom": lambda: hf.BloomForCausalLM(
        hf.BloomConfig(vocab_size=96, hidden_size=32, n_layer=LAYERS, n_head=4, hidden_dropout=0, attention_dropout=0)
    ),
    "Falcon": lambda: hf.FalconForCausalLM(hf.FalconConfig(vocab_size=96, hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=4)),
    "StarCoder2": lambda: hf.Starcoder2ForCausalLM(hf.Starcoder2Config(**GROUPED, residual_dropout=0, embedding_dropout=0)),
    "OLMo": lambda: hf.OlmoForCausalLM(hf.OlmoConfig(**GROUPED)),
    "OLMo 2": lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**GROUPED)),
    "Cohere": lambda: hf.CohereForCausalLM(hf.CohereConfig(**GROUPED)),
    "Granite": lambda: hf.GraniteForCausalLM(hf.GraniteConfig(**GROUPED)),
    "StableLM": lambda: hf.StableLmForCausalLM(hf.StableLmConfig(**GROUPED)),
    "BERT": lambda: hf.BertForMaskedLM(hf.BertConfig(**WIDE, **STILL)),
    "RoBERTa": lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**WIDE, **STILL)),
    "ELECTRA": lambda: hf.ElectraForMaskedLM(hf.ElectraConfig(**WIDE, **STILL, embedding_size=32)),
    "DistilBERT": lambda: hf.DistilBertForMaskedLM(
        hf.DistilBertConfig(
            vocab_size=96, dim=32, hidden_dim=48, n_layers=LAYERS, n_heads=4, max_position_embeddings=64, dropout=0, attention_dropout=0
        )
    ),
    "ViT": lambda: hf.ViTForImageClassification(hf.ViTConfig(**PATCHES, intermediate_size=48)),
    "DINOv2": lambda: hf.Dinov2ForImageClassification(hf.Dinov2Config(**PATCHES, mlp_ratio=2)),
    "T5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=LAYERS // 2, num_heads=4, dropout_rate=0, decoder_start_token_id=0)
    ),
    "BART": lambda: hf.BartForConditionalGeneration(
        hf.BartConfig(**TWO, encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=64, dropout=0)
    ),
    "Mixtral": lambda: hf.MixtralForCausalLM(
        hf.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2, experts_implementation="eager")
    ),
    "Mamba": lambda: hf.MambaForCausalLM(hf.MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=LAYERS, state_size=4)),
    "DeBERTa": lambda: hf.DebertaForMaskedLM(hf.DebertaConfig(**WIDE, **STILL, relative_attention=True, pos_att_type=["c2p", "p2c"])),
    "Funnel": lambda: hf.FunnelForMaskedLM(
        hf.FunnelConfig(
            vocab_size=96, block_sizes=[3, 3], num_decoder_layers=2, d_model=32, n_head=4, d_head=8, d_inner=48, hidden_dropout=0,
            attention_dropout=0, activation_dropout=0,
        )
    ),
    "Swin": lambda: hf.SwinForImageClassification(
        hf.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[4, 4], num_heads=[2, 2], window_size=4, num_labels=5, drop_path_rate=0)
    ),
    "M2M100": lambda: hf.M2M100ForConditionalGeneration(
        hf.M2M100Config(
            **TWO, encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=64, dropout=0, attention_dropout=0,
            encoder_layerdrop=0, decoder_layerdrop=0, activation_dropout=0,
        )
    ),
    "LLaVA": lambda: hf.LlavaForConditionalGeneration(
        hf.LlavaConfig(
            text_config=hf.LlamaConfig(**dict(GROUPED, num_hidden_layers=LAYERS // 2)), image_token_id=95, vision_feature_select_strategy="full",
            vision_feature_layer=-2, image_seq_length=5,
            vision_config=hf.CLIPVisionConfig(
                hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS // 2, num_attention_heads=4, image_size=16, patch_size=8
            ),
        )
    ),
}


def batch(model, samples, length):
    """Samples that end early, and labels that do not count."""
    if model.main_input_name == "pixel_values":
        size = model.config.image_size
        return {"pixel_values": torch.randn(samples, 3, size, size).double(), "labels": torch.randint(5, (samples,))}
    ids, labels = (torch.randint(3, 95, (samples, length)) for _ in range(2))
    labels[torch.rand(samples, length) < 0.3] = -100
    mask = torch.ones(samples, length, dtype=torch.int64)
    if not hasattr(model.config, "image_token_id"):
        mask[::3, -2:] = 0
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}
    n = model.config.image_seq_length
    ids[:, :n] = model.config.image_token_id
    return {"input_ids": ids, "attention_mask": mask, "pixel_values": torch.randn(samples, 3, 16, 16).double(), "labels": labels}
