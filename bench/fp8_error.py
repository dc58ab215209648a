"""How far fp8 log-probabilities are from float32 of the same (dequantised) weights, on a cut of the 12B's shape.

    python bench/fp8_error.py --tokenizer tokenizer.json --job headline.json [--peer]

Ours in all its ways of scaling and summing, plain bf16, and with --peer spinf-serve 0.1.1 (PYTHONPATH) on the very same
weights. An error is that of an option's log-probability (all its case variants), over articles x questions x options.
The weights are random: what counts is how the rows compare, not how large they are.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from job import Job, load
from results import write_result
from shapes import gemma4_12b, random_stack

from spinf_stream.engine.executor import Executor
from spinf_stream.engine.gpu.executor import GpuExecutor
from spinf_stream.engine.gpu.synthetic import batch
from spinf_stream.engine.packed import PackedEngine
from spinf_stream.engine.stack import Stack
from spinf_stream.engine.tokenizer import Encoder
from spinf_stream.engine.torch_executor import TorchExecutor
from spinf_stream.questions.compile import Source, build
from spinf_stream.questions.readout import read_out

NAMES = ("qkv", "o", "gate_up", "down")


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--job", type=Path)
    p.add_argument("--tokenizer", type=Path, required=True)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--articles", type=int, default=24)
    p.add_argument("--questions", type=int, default=56)
    p.add_argument("--peer", action="store_true")
    args = p.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    job = load(args.job, args.articles, args.questions).take(args.articles, args.questions)
    stack = random_stack(gemma4_12b(args.layers, every=args.layers), "cuda")
    encoder = Encoder.from_file(args.tokenizer, stack.spec.bos, stack.spec.vocab)
    plan = build([Source({**job.scoring, "case_insensitive": True})], encoder).plan
    trunks = [np.array([*encoder.bos, *encoder.encode(a.text.rstrip())], np.int32) for a in job.articles]
    alnum = encoder.starts_alnum()

    def options(executor: Executor) -> np.ndarray:
        engine = PackedEngine(executor, 1 << 20)
        index = engine.register(plan)
        trees = engine.collect(engine.submit(batch(trunks, [index] * len(trunks)))).trees
        return np.stack([read_out(plan, t.cand, t.end).logprob for t in trees])

    exact = dequantised(stack, torch.float32)
    want = options(TorchExecutor(exact, alnum))
    del exact
    rows: dict[str, dict[str, float]] = {"bf16, plain torch": error(options(TorchExecutor(dequantised(stack, torch.bfloat16), alnum)), want)}
    if args.peer:  # before ours: it copies its weights, ours interleaves its own in place
        rows["spinf-serve 0.1.1, fp8 static"] = error(peer(stack, job, args.tokenizer.parent), want)
    for name, ways in {
        "fp8, a scale a row, fast sums": {}, "fp8, a scale a row, full sums": {"fast_accum": False},
        "fp8, static scales, fast sums": {"row_scales": False}, "fp8, static scales, full sums": {"row_scales": False, "fast_accum": False},
    }.items():  # fmt: skip
        rows[name] = error(options(GpuExecutor(stack, alnum, **ways)), want)
    for name, row in rows.items():
        print(f"{name:<32} " + "  ".join(f"{k} {v:.5f}" for k, v in row.items()))
    print(write_result("fp8_error", {"layers": args.layers, "spread_of_logprobs": round(float(want.std()), 3), "errors": rows}))
    ours = rows["fp8, a scale a row, fast sums"]["rms"]
    theirs = rows.get("spinf-serve 0.1.1, fp8 static", {"rms": ours})["rms"]
    return 0 if ours <= theirs else 1


def error(got: np.ndarray, want: np.ndarray) -> dict[str, float]:
    d = got - want
    return {"rms": float(np.sqrt((d**2).mean())), "mean": float(np.abs(d).mean()), "worst": float(np.abs(d).max()), "bias": float(d.mean())}


def dequantised(stack: Stack, dtype: torch.dtype) -> Stack:
    layers = []
    for w in stack.layers:
        scales = w.weight_scale or {}
        layers.append(replace(w, **{n: (getattr(w, n).float() * scales[n]).to(dtype) for n in NAMES}, weight_scale=None, input_scale=None))
    return replace(stack, embed=stack.embed.to(dtype), layers=layers, scheme=str(dtype))


def peer(stack: Stack, job: Job, tokenizer: Path) -> np.ndarray:
    """spinf-serve's own scorer and kernels around our weights. Options in our order."""
    from spinf_serve import protocol, scorer, service
    from spinf_serve.config import EngineConfig
    from spinf_serve.models.base import compile_options
    from spinf_serve.models.gemma4 import Gemma4Stack, register_flex
    from spinf_serve.quant.linears import quant_linears
    from transformers.models.gemma4_unified import modeling_gemma4_unified as hf
    from transformers.models.gemma4_unified.configuration_gemma4_unified import Gemma4UnifiedTextConfig

    spec = stack.spec

    class Ours(Gemma4Stack):
        def build(self, cfg: Any, model_dir: str, device: Any) -> Any:
            compiled = compile_options(cfg)
            linears = quant_linears(compiled, device)
            kinds = ["full_attention" if s.window is None else "sliding_attention" for s in spec.layers]
            text = Gemma4UnifiedTextConfig(
                hidden_size=spec.hidden, intermediate_size=spec.intermediate, num_hidden_layers=len(kinds), layer_types=kinds,
                num_attention_heads=16, num_key_value_heads=8, head_dim=256, attention_k_eq_v=True, num_global_key_value_heads=1,
                global_head_dim=512, final_logit_softcapping=spec.softcap, sliding_window=1024,
            )  # fmt: skip
            text._attn_implementation = "tree_flex"
            register_flex(compiled)
            with torch.device("meta"):
                model = hf.Gemma4UnifiedTextModel(text)
            model.rotary_emb = hf.Gemma4UnifiedTextRotaryEmbedding(text).to(device)
            for i, (s, w) in enumerate(zip(spec.layers, stack.layers)):
                fill(model.layers[i], s, w, linears)
            with torch.no_grad():
                model.norm.weight = torch.nn.Parameter(stack.final_norm.bfloat16(), requires_grad=False)
                model.embed_tokens.weight = torch.nn.Parameter(stack.embed, requires_grad=False)
            for module in model.modules():
                if hasattr(module, "scalar_embed_scale"):
                    module._buffers["embed_scale"] = torch.tensor(module.scalar_embed_scale, device=device)
            left = [n for n, t in [*model.named_parameters(), *model.named_buffers()] if t.device.type == "meta"]
            if left:
                raise RuntimeError(f"the peer's model has tensors that were not filled: {left[:5]}")
            model._lm_weight, model._media, model._vision_bidir_all = model.embed_tokens.weight, None, True
            model._quant, model._scale_table, model._load_s, model._n_quant_linears = "fp8s", "random", 0, 0
            return model.eval(), text

    cfg = EngineConfig(model_dir=str(tokenizer), quant="fp8s", media=False, token_budget=16_384, warmup="short")
    server = service.ScoreService(cfg)
    server.scorer = scorer.Scorer(cfg, "cuda:0", stack=Ours())
    server.info = lambda: dict.fromkeys(("model", "revision", "quant", "image", "engine", "capability"), "x")
    request = {
        "model": cfg.served_model, "scoring": {"queries": job.scoring["queries"], "empty_floor": False},
        "inputs": [{"id": a.id, "messages": [{"role": "user", "content": a.text}]} for a in job.articles],
    }  # fmt: skip
    results = server.score_request(protocol.ScoreRequest.model_validate(request))["results"]
    return np.array([[o["logprob"] for q in r["queries"] for c in q["combinations"] for o in c["options"]] for r in results])


def fill(layer: Any, s: Any, w: Any, linears: Any) -> None:
    """One of the peer's layers from ours, in place."""
    d, scales, inputs = s.head_dim, w.weight_scale, w.input_scale
    parts = w.qkv.split([s.heads * d] + [s.kv_heads * d] * (1 if s.k_eq_v else 2))
    gate, up = w.gate_up.chunk(2)
    attention, mlp = layer.self_attn, layer.mlp
    places = [(attention, n, t, "qkv") for n, t in zip(("q_proj", "k_proj", "v_proj"), parts)]
    places += [(attention, "o_proj", w.o, "o"), (mlp, "gate_proj", gate, "gate_up"), (mlp, "up_proj", up, "gate_up"), (mlp, "down_proj", w.down, "down")]
    for owner, name, weight, kind in places:
        own = linears.prequantized(linears.Fp8StaticLinear, weight.clone(), scales[kind], torch.tensor(inputs[kind]))
        setattr(owner, name, own)
    norms = {
        attention.q_norm: w.q_norm, attention.k_norm: w.k_norm, layer.input_layernorm: w.attn_in,
        layer.post_attention_layernorm: w.attn_out, layer.pre_feedforward_layernorm: w.mlp_in, layer.post_feedforward_layernorm: w.mlp_out,
    }  # fmt: skip
    for module, weight in norms.items():
        module.weight = torch.nn.Parameter(weight.bfloat16(), requires_grad=False)
    layer._buffers["layer_scalar"] = torch.ones(1, dtype=torch.bfloat16, device=w.o.device)


if __name__ == "__main__":
    sys.exit(main())
