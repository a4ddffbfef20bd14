#!/usr/bin/env python3
"""`fornax serve` as OpenAI's own Python client sees it.

Owns nothing of the server: it is started as any user starts it, with the built-in model.

    python3 crates/fornax-server/tests/clients/openai_client.py target/debug/fornax

Installs the client into a virtual environment among the temporary files where it is missing.
"""

import asyncio
import math
import os
import signal
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

CLIENT = "openai==3.54.0"
PARSER = "prometheus_client==0.26.0"
KEY = "a-key-of-this-test"
MODEL = "fornax-mini"
NO_THOUGHT = {"chat_template_kwargs": {"enable_thinking": False}}


def main():
    program = Path(sys.argv[1]).resolve()
    try:
        import openai  # noqa: F401
        import prometheus_client  # noqa: F401
    except ImportError:
        os.execv(installed(), [str(installed()), __file__, str(program)])
    server, url = start(program)
    try:
        checks = [chat, stream, logprobs, choices, extensions, completions, embeddings, models, errors]
        for check in checks:
            check(client(url))
            print(f"{check.__name__}: ok", flush=True)
        asyncio.run(many(url))
        print("64 at once: ok", flush=True)
        metrics(url)
        print("metrics: ok", flush=True)
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(timeout=60)
    assert code == 0, f"the server ended with {code}"
    import openai

    print(f"openai {openai.__version__}: all checks passed")


def installed():
    """The Python of an environment that has the client."""
    name = f"fornax-{CLIENT}-{PARSER}".replace("==", "-")
    home = Path(tempfile.gettempdir()) / name
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", CLIENT, PARSER], check=True)
        (home / "complete").touch()
    return python


def start(program):
    """A server on a port that the system chose, and its address."""
    command = [program, "serve", "--port", "0", "--parallel", "8", "--log", "off", "--api-key", KEY]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in server.stdout:
        if line.startswith("listening on "):
            return server, line.removeprefix("listening on ").strip()
    raise SystemExit(f"the server did not start; it ended with {server.wait()}")


def client(url, kind="OpenAI", key=KEY):
    import openai

    return getattr(openai, kind)(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=300)


def question(text, **more):
    messages = [{"role": "user", "content": text}]
    body = {"model": MODEL, "messages": messages, "temperature": 0, "extra_body": NO_THOUGHT}
    return body | more


def chat(openai):
    answer = openai.chat.completions.create(**question("What is 12 + 30?"))
    assert "42" in answer.choices[0].message.content, answer
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == MODEL and answer.usage.total_tokens > answer.usage.prompt_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0


def stream(openai):
    body = question("Tell me a story about a fox", max_tokens=30)
    whole = openai.chat.completions.create(**body)
    options = {"include_usage": True}
    chunks = list(openai.chat.completions.create(**body, stream=True, stream_options=options))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 30


def logprobs(openai):
    body = question("What is 12 + 30?", logprobs=True, top_logprobs=2)
    choice = openai.chat.completions.create(**body).choices[0]
    tokens = choice.logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == choice.message.content
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in tokens)


def extensions(openai):
    """Fields of vLLM that the client passes on."""
    extra = NO_THOUGHT | {"priority": -3, "min_p": 0.05, "ignore_eos": True, "top_k": 20}
    body = question("What is 12 + 30?", max_tokens=40) | {"extra_body": extra}
    answer = openai.chat.completions.create(**body)
    assert answer.usage.completion_tokens == 40 and answer.choices[0].finish_reason == "length"


def choices(openai):
    body = question("Tell me a story", n=3, seed=1, max_tokens=20) | {"temperature": 1}
    texts = [choice.message.content for choice in openai.chat.completions.create(**body).choices]
    assert len(set(texts)) == 3, texts
    again = [choice.message.content for choice in openai.chat.completions.create(**body).choices]
    assert texts == again


def completions(openai):
    body = {"model": MODEL, "temperature": 0, "max_tokens": 8}
    answer = openai.completions.create(**body, prompt=["Once upon a time", "There was"], echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[1].text.startswith("There was")
    answer = openai.completions.create(**body, prompt="Once upon a time", logprobs=2)
    assert len(answer.choices[0].logprobs.token_logprobs) == answer.usage.completion_tokens
    stopped = openai.completions.create(**body, prompt="Once upon a time", stop=" ")
    assert " " not in stopped.choices[0].text


def embeddings(openai):
    texts = ["a fox", "an owl", "a fox"]
    # Unasked, the client takes base64 and decodes it itself.
    vectors = [told.embedding for told in openai.embeddings.create(model=MODEL, input=texts).data]
    floats = openai.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    for vector, told in zip(vectors, floats.data, strict=True):
        assert math.isclose(math.hypot(*vector), 1, rel_tol=1e-5)
        assert all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(vector, told.embedding))
    assert vectors[0] == vectors[2] != vectors[1]
    assert floats.usage.prompt_tokens > 0


def metrics(url):
    """What Prometheus reads is read by its own parser, under the names that dashboards know."""
    from urllib.request import Request, urlopen

    from prometheus_client.parser import text_string_to_metric_families

    headers = {"Authorization": f"Bearer {KEY}"}
    with urlopen(Request(f"{url}/metrics", headers=headers)) as answer:
        text = answer.read().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    kinds = {
        "gauge": ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"],
        "counter": [
            "prefix_cache_queries",
            "prefix_cache_hits",
            "num_preemptions",
            "prompt_tokens",
            "generation_tokens",
            "request_success",
        ],
        "histogram": [
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "e2e_request_latency_seconds",
            "request_queue_time_seconds",
        ],
    }
    for kind, names in kinds.items():
        for name in names:
            family = families[f"vllm:{name}"]
            assert family.type == kind, family
            assert all(sample.labels["model_name"] == MODEL for sample in family.samples)
            assert family.documentation, name
    cache = families["vllm:cache_config_info"].samples[0].labels
    assert int(cache["block_size"]) > 0 and int(cache["num_gpu_blocks"]) > 0
    reasons = {s.labels["finished_reason"] for s in families["vllm:request_success"].samples}
    assert reasons == {"stop", "length"}
    phases = {s.labels["phase"] for s in families["fornax:step_seconds"].samples}
    assert phases == {"prefill", "decode", "mixed"}
    assert families["vllm:num_requests_running"].samples[0].value == 0
    assert families["vllm:kv_cache_usage_perc"].samples[0].value == 0
    assert families["vllm:prefix_cache_hits"].samples[0].value > 0


def models(openai):
    assert [model.id for model in openai.models.list()] == [MODEL]
    assert openai.models.retrieve(MODEL).owned_by == "fornax"


def errors(openai):
    import openai as package

    def refused(kind, word, ask=openai, **more):
        try:
            ask.chat.completions.create(**question("Hi", **more))
        except kind as error:
            assert word in str(error), error
            return error
        raise AssertionError(f"{more} was not refused")

    assert refused(package.NotFoundError, "gpt-9", model="gpt-9").code == "model_not_found"
    assert refused(package.BadRequestError, "temperature", temperature=-1).param == "temperature"
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert refused(package.BadRequestError, "tools", tools=tools).param == "tools"
    long = [{"role": "user", "content": "fox " * 3000}]
    error = refused(package.BadRequestError, "2048", messages=long)
    assert error.code == "context_length_exceeded"
    stranger = client(str(openai.base_url).removesuffix("/v1/"), key="wrong")
    refused(package.AuthenticationError, "key", ask=stranger)
    too_many = {"role": "user", "content": "x" * (9 << 20)}
    refused(package.APIStatusError, "body", messages=[too_many])


async def many(url):
    """64 at once are told what each is told alone, streamed or not."""
    openai = client(url, "AsyncOpenAI")

    def body(index):
        story = f"Tell me a story about {index % 16} foxes"
        return question(story, max_tokens=16, seed=index) | {"temperature": index % 2}

    async def ask(index):
        if index % 3:
            answer = await openai.chat.completions.create(**body(index))
            return answer.choices[0].message.content
        chunks = await openai.chat.completions.create(**body(index), stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    together = await asyncio.gather(*map(ask, range(64)))
    alone = [await ask(index) for index in range(64)]
    assert together == alone, [pair for pair in zip(together, alone) if pair[0] != pair[1]]
    await openai.close()


if __name__ == "__main__":
    main()
