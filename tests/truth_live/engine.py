"""A real vLLM that does as it is told: `engine.py SETTINGS`, a JSON object of the arguments of `vllm.LLM` and, as `adapter`,
a folder with a LoRA adapter that is called `tuned`.

Each line of standard input is one order, and is answered by one JSON object on a line of standard output, as soon as
the engine has done it:

    {"prompts": [{"tokens": [..], "output": N, "salt": S, "tuned": true}, ..]}
        -> {"requests": [{"cached": N, "output": [..]}, ..]}: the engine's own count of tokens that were cached
    {"reset": true} -> {"done": true}: the prefix cache is dropped

The first line says that it is ready. Everything that vLLM prints goes to standard error.
"""

import json
import os
import sys


def main():
    settings = json.loads(sys.argv[1])
    # What the engine and its processes print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    import vllm
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    adapter = settings.pop("adapter")
    tuned = LoRARequest("tuned", 1, adapter) if adapter else None
    engine = LLM(**settings)

    def say(answer):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    def generate(prompts):
        asked, sampling = [], []
        for prompt in prompts:
            one = {"prompt_token_ids": prompt["tokens"]}
            if prompt.get("salt"):
                one["cache_salt"] = prompt["salt"]
            asked.append(one)
            sampling.append(SamplingParams(max_tokens=prompt["output"], ignore_eos=True, detokenize=False, temperature=0))
        adapters = [tuned if prompt.get("tuned") else None for prompt in prompts]
        done = engine.generate(asked, sampling, use_tqdm=False, lora_request=adapters if any(adapters) else None)
        return [{"cached": one.num_cached_tokens, "output": list(one.outputs[0].token_ids)} for one in done]

    say({"ready": True, "version": vllm.__version__})
    for line in sys.stdin:
        order = json.loads(line)
        if order.get("reset"):
            say({"done": bool(engine.reset_prefix_cache())})
        else:
            say({"requests": generate(order["prompts"])})


if __name__ == "__main__":
    main()
