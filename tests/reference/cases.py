"""The checkpoints of the golden comparison: every layer kind alone and mixed, hash and scored routing,
odd sizes of everything that may vary, FP8 and FP4 weights, other element types and other constants."""

BASE = dict(
    architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", attention_bias=False, attention_dropout=0.0,
    bos_token_id=0, eos_token_id=1, hc_eps=1e-6, hc_mult=4, hc_sinkhorn_iters=20, head_dim=512, hidden_act="silu",
    index_head_dim=128, initializer_range=0.02, max_position_embeddings=65536, n_shared_experts=1, norm_topk_prob=True,
    num_key_value_heads=1, num_nextn_predict_layers=0, qk_rope_head_dim=64, rms_norm_eps=1e-6, rope_theta=10000,
    compress_rope_theta=160000, scoring_func="sqrtsoftplus", sliding_window=128, swiglu_limit=10.0,
    tie_word_embeddings=False, topk_method="noaux_tc", torch_dtype="bfloat16", use_cache=True,
    rope_scaling=dict(beta_fast=32, beta_slow=1, factor=16, original_max_position_embeddings=65536, type="yarn"))

QUANT = dict(
    expert_dtype="fp4",
    quantization_config=dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", scale_fmt="ue8m0",
                             weight_block_size=[128, 128]))


def config(ratios, **changes):
    c = dict(BASE)
    c.update(num_hidden_layers=len(ratios), compress_ratios=list(ratios) + [0], hidden_size=128, vocab_size=512,
             q_lora_rank=64, o_groups=4, o_lora_rank=32, num_attention_heads=4, index_n_heads=4, index_topk=16,
             n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, num_hash_layers=0,
             routed_scaling_factor=1.5)
    c.update(changes)
    return c


LENGTHS = [1, 2, 3, 4, 5, 7, 8, 127, 128, 129, 255, 256, 257, 1000, 4097]

# name: (configuration, seed, base element type, worker counts it divides by)
CASES = {
    "swa": (config([0, 0]), 101, "BF16", [1, 2, 4]),
    "csa": (config([4, 4], num_hash_layers=1), 102, "BF16", [1, 2, 4]),
    "hca": (config([128, 128]), 103, "BF16", [1, 2, 4]),
    "mixed": (config([0, 4, 128, 4], num_hash_layers=2, n_routed_experts=12, num_experts_per_tok=3,
                     num_attention_heads=8, swiglu_limit=2.0, routed_scaling_factor=2.5), 104, "BF16", [1, 2, 4]),
    "pro": (config([128, 128, 4, 128, 4], num_hash_layers=3, num_attention_heads=8, o_groups=8, o_lora_rank=16,
                   index_topk=64, num_experts_per_tok=6), 105, "BF16", [1, 2, 4]),
    "odd": (config([4, 0, 128], hidden_size=200, vocab_size=508, q_lora_rank=56, o_lora_rank=20, o_groups=4,
                   num_attention_heads=12, index_n_heads=5, index_topk=13, n_routed_experts=12, num_experts_per_tok=5,
                   moe_intermediate_size=72, num_hash_layers=1, hc_sinkhorn_iters=7, rms_norm_eps=1e-5,
                   rope_theta=50000, compress_rope_theta=80000,
                   rope_scaling=dict(beta_fast=16, beta_slow=2, factor=4, original_max_position_embeddings=1024,
                                     type="yarn")), 106, "BF16", [1, 2, 4]),
    "single": (config([0, 4], hidden_size=132, vocab_size=257, q_lora_rank=33, o_lora_rank=17, o_groups=1,
                      num_attention_heads=3, index_n_heads=1, index_topk=1, n_routed_experts=5,
                      num_experts_per_tok=1, moe_intermediate_size=40), 107, "F16", [1]),
    "fp8fp4": (config([0, 4, 128, 4], hidden_size=256, q_lora_rank=128, o_lora_rank=64, moe_intermediate_size=128,
                      num_attention_heads=8, index_n_heads=8, num_hash_layers=1, **QUANT), 108, "BF16", [1, 2, 4]),
    "fp8odd": (config([128, 4], hidden_size=192, q_lora_rank=96, o_lora_rank=40, moe_intermediate_size=96,
                      index_topk=20, **QUANT), 109, "BF16", [1, 2, 4]),
    "f32": (config([4, 128], index_topk=48, num_attention_heads=8, o_groups=8), 110, "F32", [1, 2, 4]),
}

# Rounding to eight or four bits amplifies the last bit of an fp32 sum wherever a value lies near a midpoint,
# so qat is judged by many short prompts, before such flips have piled up, and a few longer ones; and by how
# far the rounding itself moves the model (the same prompts with plain numerics).
QAT_PROMPTS = [(1000 + i, 24) for i in range(48)] + [(2000, 300), (2001, 300)]
QAT_CASES = {
    "round": (config([4, 128, 4, 0], num_attention_heads=8, index_topk=2), 111, "BF16", [1, 2]),
    "roundq": (config([0, 4, 128], hidden_size=256, q_lora_rank=128, o_lora_rank=64, moe_intermediate_size=128,
                      num_attention_heads=8, index_n_heads=8, index_topk=2, **QUANT), 112, "BF16", [1, 2]),
}
