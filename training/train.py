"""Makes the built-in model in one command: corpus, tokenizer, training, GGUF, evaluation.

    python3 training/train.py --out OUT --minutes 8.5

`--minutes` is the budget of the whole command; training gets what the other stages leave. It needs the packages of
`requirements.txt` and, for the full size, one large GPU. The results are written under `--out`.
"""

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
sys.path.insert(0, str(Path(__file__).parent))

import torch

import data
import evaluate
import export_gguf
import samples
import tokenizer as tokens
from corpus import evaluation
from model import Config, Model
from trainer import Trainer

_AFTER_TRAINING = 40  # seconds kept for export, evaluation and samples


def main():
    """Runs all stages and prints what each of them took."""
    began = time.monotonic()
    options = parse_options()
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)

    def note(text):
        line = f"[{time.monotonic() - began:6.1f} s] {text}"
        print(line, flush=True)
        with open(options.out / "log.txt", "a") as log:
            log.write(line + "\n")

    processes = os.cpu_count()
    paths = data.write_corpus(options.work, options.seed, options.documents, processes)
    shutil.copy(paths[0], options.out / "corpus-sample.gz")
    note(f"corpus: {options.documents} documents, {sum(p.stat().st_size for p in paths) / 1e6:.1f} MB gzipped")
    sample = [document for path in paths[:10] for document in data.read_shard(path)]
    tokenizer = tokens.learn(sample, Config.vocabulary)
    tokenizer.save(str(options.out / "tokenizer.json"))
    note(f"tokenizer: {tokenizer.get_vocab_size()} tokens from {sum(map(len, sample)) / 1e6:.1f} M characters")
    rows = data.pack(paths, tokenizer, Config.context, processes)
    note(f"packed: {rows.token_count / 1e6:.1f} M tokens in {len(rows.tokens)} rows, {100 * rows.token_count / rows.tokens.size:.1f} % full")
    if options.corpus_only:
        return

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)
    model = Model(Config(layers=options.layers)).to(device)
    note(f"model: {model.parameter_count()} parameters on {device}")
    deadline = began + options.minutes * 60 - _AFTER_TRAINING
    Trainer(model, rows, options.batch_rows, deadline, options.steps, note).run()

    gguf_path = options.out / "fornax-mini.gguf"
    export_gguf.write(gguf_path, model, tokenizer)
    torch.save({name: value.bfloat16() for name, value in model.state_dict().items()}, options.out / "weights-bf16.pt")
    note(f"exported: {gguf_path.stat().st_size} bytes")
    export_gguf.load(gguf_path, model)
    note("evaluating the decoded Q8_0 weights, greedy")
    report(model.float().eval(), tokenizer, options, note)


def report(model, tokenizer, options, note):
    """Evaluates, samples, and writes what was found."""
    items = [item for skill in evaluation.SKILLS for item in evaluation.items(skill, options.items)]
    scores, wrong = evaluate.run(model, tokenizer, items)
    for skill, (right, total) in scores.items():
        note(f"  {skill:14} {right:4} of {total:4}  {100 * right / total:6.2f} %")
    (options.out / "wrong.json").write_text(json.dumps(wrong, indent=1, ensure_ascii=False))
    text = samples.write(model, tokenizer)
    (options.out / "samples.txt").write_text(text)
    note("samples written")
    perplexity, count = evaluate.perplexity(model, tokenizer, evaluation.held_out_stories(options.items))
    note(f"  story perplexity {perplexity:.3f} over {count} tokens")
    result = {"scores": scores, "story_perplexity": perplexity, "story_tokens": count}
    (options.out / "results.json").write_text(json.dumps(result, indent=1))


def parse_options():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--work", type=Path, default=Path("/tmp/fornax-corpus"), help="folder for the corpus")
    parser.add_argument("--minutes", type=float, default=8.5, help="budget of the whole command")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--documents", type=int, default=480_000, help="size of the corpus")
    parser.add_argument("--layers", type=int, default=Config.layers)
    parser.add_argument("--batch-rows", type=int, default=64, help="rows of 2,048 tokens in a step")
    parser.add_argument("--steps", type=int, default=None, help="stop after so many steps (to try it out)")
    parser.add_argument("--items", type=int, default=200, help="evaluation items a skill")
    parser.add_argument("--corpus-only", action="store_true", help="stop before training")
    return parser.parse_args()


if __name__ == "__main__":
    main()
