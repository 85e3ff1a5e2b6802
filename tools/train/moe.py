"""ERNIE 4.5 with experts and DeepSeek-V3 with a layer for multi-token prediction, of the parts in model.py.

Every expert of so small a model is computed for every token, as slices of one wide MLP, and those that were not chosen
weigh nothing: that is as exact as sorting the tokens by expert, and faster. The bias of the choice is moved after each
step against the load of the expert (DeepSeek-V3, section 2.1.2: no auxiliary loss).
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from model import Attention, Decoder, Layer, Linear, Mlp, RmsNorm, packed_attention, rotate_pairs

BIAS_RATE = 1e-3       # how far a step moves the bias of an expert
MTP_LOSS_WEIGHT = 0.2


@dataclass(frozen=True)
class ErnieConfig:
    """5.94 M parameters: 11.9 MB in bfloat16."""
    vocab_size: int = 8192
    hidden_size: int = 256
    num_layers: int = 6
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 256      # of the first layer, which is dense
    num_experts: int = 8
    num_experts_per_tok: int = 3
    expert_size: int = 64
    num_shared_experts: int = 2
    rope_theta: float = 10000.0
    max_seq_len: int = 4096


@dataclass(frozen=True)
class DeepSeekConfig:
    """5.98 M parameters: 12.0 MB in bfloat16."""
    vocab_size: int = 8192
    hidden_size: int = 256
    num_layers: int = 5               # and one for multi-token prediction
    num_heads: int = 4
    q_lora_rank: int = 128
    kv_lora_rank: int = 128
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 32
    v_head_dim: int = 64
    intermediate_size: int = 256
    num_experts: int = 8
    num_experts_per_tok: int = 3
    num_groups: int = 4
    num_chosen_groups: int = 2
    expert_size: int = 64
    num_shared_experts: int = 1
    routed_scaling_factor: float = 2.5
    rope_theta: float = 10000.0
    max_seq_len: int = 4096


def softmax_routing(logits, bias, config):
    """(weights, chosen) of each expert, [num_tokens, num_experts] both; ERNIE 4.5."""
    scores = logits.softmax(-1)
    chosen = F.one_hot((scores + bias).topk(config.num_experts_per_tok).indices, config.num_experts).sum(1)
    weights = scores * chosen
    return weights / weights.sum(-1, keepdim=True), chosen


def group_routing(logits, bias, config):
    """The same of DeepSeek-V3: sigmoid scores; only experts of the groups whose two best ones are best together."""
    scores = logits.sigmoid()
    ranked = (scores + bias).unflatten(-1, (config.num_groups, -1))
    best = ranked.topk(2).values.sum(-1).topk(config.num_chosen_groups).indices
    allowed = F.one_hot(best, config.num_groups).sum(1).bool().unsqueeze(-1)
    ranked = ranked.masked_fill(~allowed, -torch.inf).flatten(1)
    chosen = F.one_hot(ranked.topk(config.num_experts_per_tok).indices, config.num_experts).sum(1)
    weights = scores * chosen
    return config.routed_scaling_factor * weights / weights.sum(-1, keepdim=True), chosen


class Experts(nn.Module):
    def __init__(self, config, routing):
        super().__init__()
        self.config, self.routing = config, routing
        shape = (config.num_experts, config.expert_size, config.hidden_size)
        self.gate_proj = nn.Parameter(torch.randn(shape) * config.hidden_size ** -0.5)
        self.up_proj = nn.Parameter(torch.randn(shape) * config.hidden_size ** -0.5)
        self.down_proj = nn.Parameter(torch.zeros(shape).mT.contiguous())
        self.router = nn.Parameter(torch.randn(config.num_experts, config.hidden_size) * config.hidden_size ** -0.5)
        self.shared_experts = Mlp(config.hidden_size, config.num_shared_experts * config.expert_size)
        self.register_buffer("bias", torch.zeros(config.num_experts))
        self.register_buffer("load", torch.zeros(config.num_experts))  # tokens an expert saw in the last step

    def forward(self, x):
        weights, chosen = self.routing(F.linear(x.float(), self.router), self.bias, self.config)
        self.load.copy_(chosen.sum(0))
        wide = F.silu(F.linear(x, self.gate_proj.flatten(0, 1).bfloat16())) * F.linear(x, self.up_proj.flatten(0, 1).bfloat16())
        wide = (wide.unflatten(-1, (self.config.num_experts, -1)) * weights.bfloat16().unsqueeze(-1)).flatten(1)
        down = self.down_proj.transpose(0, 1).flatten(1).bfloat16()  # [hidden_size, num_experts * expert_size]
        return F.linear(wide, down) + self.shared_experts(x)

    @torch.no_grad()
    def balance(self):
        self.bias += BIAS_RATE * (self.load.mean() - self.load).sign()


class LatentAttention(nn.Module):
    """DeepSeek's: keys and values of all heads come from one short vector a token, queries from another."""

    def __init__(self, config):
        super().__init__()
        self.config = c = config
        self.q_a_proj = Linear(c.hidden_size, c.q_lora_rank)
        self.q_a_layernorm = RmsNorm(c.q_lora_rank)
        self.q_b_proj = Linear(c.q_lora_rank, c.num_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim))
        self.kv_a_proj_with_mqa = Linear(c.hidden_size, c.kv_lora_rank + c.qk_rope_head_dim)
        self.kv_a_layernorm = RmsNorm(c.kv_lora_rank)
        self.kv_b_proj = Linear(c.kv_lora_rank, c.num_heads * (c.qk_nope_head_dim + c.v_head_dim))
        self.o_proj = Linear(c.num_heads * c.v_head_dim, c.hidden_size, zero=True)

    def forward(self, x, cos, sin, cu_seqlens):
        c = self.config
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).unflatten(-1, (c.num_heads, -1))
        q_nope, q_rope = q.split((c.qk_nope_head_dim, c.qk_rope_head_dim), dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((c.kv_lora_rank, c.qk_rope_head_dim), dim=-1)
        k_nope, v = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (c.num_heads, -1)).split((c.qk_nope_head_dim, c.v_head_dim), dim=-1)
        k_rope = rotate_pairs(k_rope.unsqueeze(1), cos, sin).expand(-1, c.num_heads, -1)
        q = torch.cat((q_nope, rotate_pairs(q_rope, cos, sin)), dim=-1)
        k = torch.cat((k_nope, k_rope), dim=-1)
        return self.o_proj(packed_attention(q, k, v.contiguous(), cu_seqlens, c.max_seq_len).flatten(1))


class MtpModule(Layer):
    """A layer that guesses the token after the next one: from a hidden state and the token that follows."""

    def __init__(self, config, attention, mlp):
        super().__init__(config.hidden_size, attention, mlp)
        self.enorm = RmsNorm(config.hidden_size)
        self.hnorm = RmsNorm(config.hidden_size)
        self.eh_proj = Linear(2 * config.hidden_size, config.hidden_size)
        self.shared_head = nn.ModuleDict({"norm": RmsNorm(config.hidden_size)})

    def forward(self, next_embedded, hidden, cos, sin, cu_seqlens):
        x = self.eh_proj(torch.cat((self.enorm(next_embedded), self.hnorm(hidden)), dim=-1))
        return self.shared_head["norm"](super().forward(x, cos, sin, cu_seqlens))


class MoeDecoder(Decoder):
    def after_step(self):
        for module in self.modules():
            if isinstance(module, Experts):
                module.balance()

    def checkpoint(self):
        """One tensor for each matrix of each expert; routers as the family stores them (router_names())."""
        tensors = {}
        for name, weight in self.state_dict().items():
            name = "model." + name
            stem, _, last = name.rpartition(".")
            if last == "load":
                continue
            if last in ("router", "bias"):
                name, weight = self.router_tensor(stem, last, weight)
                tensors[name] = weight
            elif weight.ndim == 3:
                tensors |= {f"{stem}.experts.{i}.{last}.weight": expert.bfloat16() for i, expert in enumerate(weight)}
            else:
                tensors[name] = weight.bfloat16()
        return tensors


class Ernie(MoeDecoder):
    def __init__(self, config):
        def attention():
            return Attention(config, has_norms=False, rotate=rotate_pairs)
        layers = [Layer(config.hidden_size, attention(), Mlp(config.hidden_size, config.intermediate_size))]
        layers += [Layer(config.hidden_size, attention(), Experts(config, softmax_routing)) for _ in range(config.num_layers - 1)]
        super().__init__(config, layers, config.head_dim)

    @staticmethod
    def router_tensor(stem, kind, weight):
        return (stem + ".gate.weight", weight) if kind == "router" else (stem + ".moe_statics.e_score_correction_bias", weight[None])

    def hf_config(self):
        c = self.config
        return {"architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "num_key_value_heads": c.num_kv_heads,
                "head_dim": c.head_dim, "use_bias": False, "moe_intermediate_size": c.expert_size, "moe_k": c.num_experts_per_tok,
                "moe_num_experts": c.num_experts, "moe_num_shared_experts": c.num_shared_experts, "moe_layer_start_index": 1,
                "moe_layer_end_index": c.num_layers - 1, "moe_layer_interval": 1, "moe_norm_min": 1e-12}


class DeepSeek(MoeDecoder):
    def __init__(self, config):
        def experts():
            return Experts(config, group_routing)
        layers = [Layer(config.hidden_size, LatentAttention(config), Mlp(config.hidden_size, config.intermediate_size))]
        layers += [Layer(config.hidden_size, LatentAttention(config), experts()) for _ in range(config.num_layers - 1)]
        super().__init__(config, layers, config.qk_rope_head_dim)
        self.mtp = MtpModule(config, LatentAttention(config), experts())

    def mtp_hidden(self, token_ids, hidden, positions, cu_seqlens):
        """Row i: from the hidden state of token i and token i + 1. The last row of a document is of no use."""
        return self.mtp(self.embed(token_ids.roll(-1)), hidden, *self.rotation(positions), cu_seqlens)

    def forward(self, token_ids, positions, cu_seqlens, loss_idx, targets):
        hidden = self.hidden(token_ids, positions, cu_seqlens)
        losses = F.cross_entropy(self.head(hidden[loss_idx]).float(), targets, reduction="none")
        # What the model learns to say behind token i, the layer guesses one token earlier.
        guessed = self.head(self.mtp_hidden(token_ids, hidden, positions, cu_seqlens)[(loss_idx - 1).clamp(min=0)])
        mtp_losses = F.cross_entropy(guessed.float(), targets, reduction="none") * (positions[loss_idx] > 0)
        return losses, mtp_losses

    def checkpoint(self):
        """The layer for multi-token prediction lies behind the others, without its copies of the embedding."""
        return {name.replace("model.mtp.", f"model.layers.{self.config.num_layers}."): weight for name, weight in super().checkpoint().items()}

    @staticmethod
    def router_tensor(stem, kind, weight):
        return (stem + ".gate.weight", weight.bfloat16()) if kind == "router" else (stem + ".gate.e_score_correction_bias", weight)

    def hf_config(self):
        c = self.config
        return {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_key_value_heads": c.num_heads,
                "q_lora_rank": c.q_lora_rank, "kv_lora_rank": c.kv_lora_rank, "qk_nope_head_dim": c.qk_nope_head_dim,
                "qk_rope_head_dim": c.qk_rope_head_dim, "v_head_dim": c.v_head_dim, "attention_bias": False, "rope_interleave": True,
                "moe_intermediate_size": c.expert_size, "num_experts_per_tok": c.num_experts_per_tok, "n_routed_experts": c.num_experts,
                "n_shared_experts": c.num_shared_experts, "n_group": c.num_groups, "topk_group": c.num_chosen_groups,
                "first_k_dense_replace": 1, "norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
                "routed_scaling_factor": c.routed_scaling_factor, "num_nextn_predict_layers": 1}


def report_load(model, mtp_loss):
    """Prints the largest and the smallest share of tokens that an expert of each layer saw, times the number of experts."""
    loads = [module.load / module.load.sum().clamp(min=1) * len(module.load) for module in model.modules() if isinstance(module, Experts)]
    if loads:
        print("  load " + " ".join(f"{load.min():.2f}-{load.max():.2f}" for load in loads) + (f"  mtp {mtp_loss:.4f}" if mtp_loss else ""), flush=True)
