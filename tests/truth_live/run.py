#!/usr/bin/env python3
"""A real vLLM beside a real kvtap, live: before each request kvtap says what the engine holds, and then the engine says what it
had cached. `run.py --kvtap PATH --work FOLDER [--requests N] [--seed N]`; `make truth` makes the environment and runs it.

Meanwhile the cache is too small for what is asked, it is dropped, batches come in between, kvtap is killed and comes back with
its snapshots, the engine is killed and comes back empty, and both at once. The table of the page is rewritten; the
exit code is 1 where an answer differs without a known reason.
"""

import argparse
import time
from pathlib import Path

import page
from model import write_adapter, write_model
from parties import Engine, Tap, Witness, eventually
from prompts import Prompts

# Each so many requests, something happens; in this order, over and over.
EVERY = 12
HAPPENINGS = [
    "a batch",
    "kvtap is killed",
    "the cache is dropped",
    "a batch",
    "kvtap is killed, and requests come before it is back",
    "the engine is killed",
    "the cache is dropped, and kvtap is killed",
    "a batch",
    "the engine is killed while kvtap is away",
]


class Run:
    def __init__(self, options, block_size, blocks):
        options.work.mkdir(parents=True, exist_ok=True)
        self.adapter = None if options.without_adapter else str(write_adapter(options.work / "adapter"))
        settings = {
            "model": str(write_model(options.work / "model")),
            "adapter": self.adapter,
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "enforce_eager": True,
            "enable_prefix_caching": True,
            "num_gpu_blocks_override": blocks,
            "block_size": block_size,
            "max_model_len": 2048,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 512,
            "seed": 0,
        }
        if self.adapter:
            settings |= {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
        self.engine = Engine(settings, options.work)
        self.tap = Tap(options.kvtap, self.engine, options.work)
        self.prompts = Prompts(options.seed, block_size, bool(self.adapter))
        self.requests, self.happened, self.found = options.requests, {}, []
        # A dropped cache is published with the engine's next step; until then nobody outside can know.
        self.unsaid_drop = False

    def play(self):
        self.version = self.engine.start()
        self.witness = Witness(self.engine.events)
        self.tap.start()
        for number in range(self.requests):
            if number and number % EVERY == 0:
                self.happen(HAPPENINGS[(number // EVERY - 1) % len(HAPPENINGS)])
            self.compare(number)
        self.engine.kill()
        self.tap.kill()

    def settled(self):
        """Waits until kvtap has come as far as the engine has published, and is sure of it."""
        last = self.witness.hear()

        def there():
            rank = self.tap.report()
            # Of a life that has said nothing yet there is nothing to know, and nothing is claimed.
            if last is None:
                return rank["blocks"] == 0 or rank["last_seq"] is None
            return rank["state"] == "live" and rank["last_seq"] == last

        eventually("kvtap has come as far as the engine", there)

    def compare(self, number):
        kind, prompt = self.prompts.next()
        self.settled()
        told = self.tap.match(prompt)
        [answer] = self.engine.generate([prompt])
        self.prompts.answered(prompt, answer["output"])
        ours, theirs = told["matched_tokens"], answer["cached"]
        one = {"number": number, "kind": kind, "tokens": len(prompt["tokens"]), "kvtap": ours, "engine": theirs}
        one |= {"state": told["state"], "after_drop": self.unsaid_drop}
        self.unsaid_drop = False
        self.found.append(one)
        if ours != theirs:
            print(f"request {number} ({kind}): kvtap {ours}, engine {theirs}, {told['state']}: {told['why']}", flush=True)
        elif number % 50 == 0:
            print(f"request {number}: {sum(one['kvtap'] == one['engine'] for one in self.found)} equal so far", flush=True)

    def unseen(self, number):
        """Requests that come all at once, of which the engine's count says nothing: they share while they are computed."""
        asked = [self.prompts.next()[1] for _ in range(number)]
        for prompt, answer in zip(asked, self.engine.generate(asked), strict=True):
            self.prompts.answered(prompt, answer["output"])

    def happen(self, what):
        self.happened[what] = self.happened.get(what, 0) + 1
        print(f"{what}", flush=True)
        if what == "a batch":
            self.unseen(6)
        if "cache is dropped" in what:
            self.unsaid_drop = self.engine.reset()
        if "kvtap is killed" in what or "kvtap is away" in what:
            self.tap.kill()
        if "requests come" in what:
            self.unseen(3)
        if "engine is killed" in what:
            self.engine.kill()
            self.witness.forget()
            self.engine.start()
        if "kvtap" in what:
            self.tap.start()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvtap", required=True, help="the binary")
    parser.add_argument("--work", required=True, type=Path, help="a folder for the model, the logs and the snapshots")
    parser.add_argument("--requests", type=int, default=400, help="how many are compared")
    parser.add_argument("--seed", type=int, default=1, help="another seed asks other prompts")
    parser.add_argument("--block-size", type=int, default=32, help="tokens a block")
    parser.add_argument("--blocks", type=int, default=160, help="how many the engine has: few, so that it evicts")
    parser.add_argument("--without-adapter", action="store_true", help="no LoRA")
    options = parser.parse_args()
    run = Run(options, options.block_size, options.blocks)
    began = time.monotonic()
    try:
        run.play()
    finally:
        for party in (run.engine, run.tap):
            if party.lives:
                party.kill()
    row = page.row(run, options, time.monotonic() - began)
    page.rewrite(row)
    print(row["text"])
    raise SystemExit(1 if row["unexplained"] else 0)


if __name__ == "__main__":
    main()
