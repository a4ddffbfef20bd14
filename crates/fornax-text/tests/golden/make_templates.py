"""Writes templates.json: what chat templates render to in Python, in the settings of
`transformers` (`utils/chat_template_utils.py`, 4.57: ImmutableSandboxedEnvironment with
trim_blocks, lstrip_blocks, loop controls, `tojson`, `raise_exception`, `strftime_now` and the
`generation` tag).

    pip install jinja2==3.1.6
    FORNAX_SHARED=../shared python make_templates.py

The templates are those of `$FORNAX_SHARED/templates`, the `.jinja` files beside this script and
those in `families`, which do what the templates of well-known models do in words of our own.
"""

import datetime
import json
import os
import pathlib

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from expressions import EXPRESSIONS, GIVEN

assert jinja2.__version__ == "3.1.6", "pip install jinja2==3.1.6"

HERE = pathlib.Path(__file__).parent
SHARED = pathlib.Path(os.environ.get("FORNAX_SHARED", HERE / "../../../../../shared"))
UNIX_SECONDS = 1_790_000_000
LLAMA = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
CHATML = {"eos_token": "<|im_end|>"}
# Each template's variables where a request does not set them; Hermes' insists on a list of tools.
HERMES = {**LLAMA, **CHATML, "tools": []}
PLAIN = {"bos_token": "<s>", "eos_token": "</s>"}
FAMILIES = ["deepseek", "documents", "gemma", "harmony", "llama31", "mistral", "phi"]
VARIABLES = {"meta-llama": LLAMA, "NousResearch": HERMES, "Qwen": CHATML} | dict.fromkeys(
    FAMILIES, PLAIN
)


class Generation(jinja2.ext.Extension):
    """The tag that marks an assistant's words; it prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

    def body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def strftime_now(form):
    moment = datetime.datetime.fromtimestamp(UNIX_SECONDS, datetime.timezone.utc)
    return moment.strftime(form)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def completed(request):
    """The form that templates expect, as vLLM makes it of OpenAI's."""
    request = json.loads(json.dumps(request))
    for message in request["messages"]:
        calls = message.get("tool_calls") or []
        for call in calls:
            arguments = call.get("function", {}).get("arguments")
            if isinstance(arguments, str):
                try:
                    parsed = json.loads(arguments)
                except ValueError:
                    continue
                if isinstance(parsed, dict):
                    call["function"]["arguments"] = parsed
        if calls and message.get("content") is None:
            message["content"] = ""
    return request


def rendered(template, request):
    variables = {"tools": None, "documents": None, "add_generation_prompt": False}
    try:
        return {"text": template.render(**{**variables, **completed(request)})}
    except jinja2.exceptions.TemplateError as error:
        refused = type(error) is jinja2.exceptions.TemplateError
        return {"refused": str(error)} if refused else {"failed": str(error)}
    except (TypeError, RecursionError) as error:
        return {"failed": str(error)}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def result(content, **more):
    return {"role": "tool", "content": content, **more}


def tool(name, description, properties, **more):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {**function, **more}}


WEATHER = tool(
    "weather",
    "The weather at a place, e.g. \"Zürich\" & <Köln>.",
    {
        "place": {"type": "string", "description": " Name of the place. "},
        "days": {"type": "integer", "description": "How many days", "default": 1, "minimum": 1},
    },
)
CLOCK = tool("clock", "What time it is.", {})
SEARCH = tool(
    "search",
    "Search\nover lines\t'quoted' \\ backslashed \u2028 \u007f \u0001.",
    {
        "terms": {"type": "array", "items": {"type": "string"}, "description": "Words"},
        "limit": {"type": ["integer", "string"], "description": "Most results"},
        "options": {
            "type": "object",
            "description": "More",
            "additionalProperties": {"type": "number"},
        },
        "else": {"description": "Anything", "enum": [1.0, 1e-7, 1e16, 123456789012, -0.5, None, False]},
    },
    **{"return": {"type": "array", "description": "What was found"}},
)
# Hermes' template asks for the type of a boolean without end.
EXACT = tool("exact", "Is it?", {"exact": {"type": "boolean", "description": "Exactly?"}})
ASK = [user("What's the weather in Köln?")]

CONVERSATIONS = {
    "one question": {"messages": [user("Hello!")], "add_generation_prompt": True},
    "no generation prompt": {"messages": [user("Hello!")]},
    "system": {
        "messages": [system("You are terse."), user("Hello!")],
        "add_generation_prompt": True,
    },
    "several turns": {
        "messages": [
            system("You are terse."),
            user("One?"),
            assistant("Two."),
            user("Three?"),
            assistant("Four."),
            user("Five?"),
        ],
        "add_generation_prompt": True,
    },
    "ends with the assistant": {"messages": [user("One?"), assistant("Two.")]},
    "system in the middle": {
        "messages": [user("One?"), assistant("Two."), system("Be brief."), user("Three?")],
        "add_generation_prompt": True,
    },
    "white space": {
        "messages": [system("  \n padded \t"), user("\n\n  a  b \n"), assistant("  c\n\n"), user("")],
        "add_generation_prompt": True,
    },
    "every script": {
        "messages": [
            system("Sois précis — 日本語で。"),
            user("Привет, мир! مرحبا 👩‍👩‍👧 🇨🇭 e\u0301 \u200b\ufeff"),
            assistant("नमस्ते ❤️"),
            user("𝕏 \U0010ffff"),
        ],
        "add_generation_prompt": True,
    },
    "markup and quotes": {
        "messages": [
            user("<b>\"a\" & 'b'</b> {{ x }} {% y %} \\n \\ <|im_end|> <|eot_id|>"),
            assistant("</tool_call> `</think>`"),
            user("#"),
        ],
        "add_generation_prompt": True,
    },
    "tools": {"messages": ASK, "tools": [WEATHER, CLOCK], "add_generation_prompt": True},
    "tools and system": {
        "messages": [system("Use tools."), *ASK],
        "tools": [SEARCH],
        "add_generation_prompt": True,
    },
    "a boolean parameter": {"messages": ASK, "tools": [EXACT], "add_generation_prompt": True},
    "no tools": {"messages": ASK, "tools": [], "add_generation_prompt": True},
    "bare tool": {
        "messages": ASK,
        "tools": [WEATHER["function"]],
        "add_generation_prompt": True,
    },
    "call and result": {
        "messages": [
            *ASK,
            assistant("", tool_calls=[call("weather", {"place": "Köln", "days": 2})]),
            result("{\"sky\": \"<grey> & wet\"}", name="weather"),
            assistant("Grey."),
            user("Thanks!"),
        ],
        "tools": [WEATHER],
        "add_generation_prompt": True,
    },
    "call on the wire": {
        "messages": [
            *ASK,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call("weather", "{\"place\": \"K\\u00f6ln\", \"days\": 2.50}", id="call_1")],
            },
            result("wet", tool_call_id="call_1"),
        ],
        "tools": [WEATHER],
        "add_generation_prompt": True,
    },
    "arguments that are no object": {
        "messages": [*ASK, assistant("Hm.", tool_calls=[call("weather", "[1, 2")]), result("?")],
        "tools": [WEATHER],
    },
    "two calls at once": {
        "messages": [
            *ASK,
            assistant(
                "Let me see.",
                tool_calls=[call("weather", {"place": "Köln"}), call("clock", {})],
            ),
            result("wet"),
            result("noon"),
            assistant("Wet at noon."),
            user("And?"),
        ],
        "tools": [WEATHER, CLOCK],
        "add_generation_prompt": True,
    },
    "call without content": {
        "messages": [*ASK, {"role": "assistant", "tool_calls": [call("clock", {})]}, result("noon")],
        "tools": [CLOCK],
        "add_generation_prompt": True,
    },
    "arguments of every kind": {
        "messages": [
            *ASK,
            assistant(
                "",
                tool_calls=[
                    call(
                        "search",
                        {
                            "z": [1, -2, 3.0, 1e-7, 1.5e300, 0.1, 1e16, 123456789.125],
                            "a": {"é": None, "t": True, "f": False, "e": {}, "l": [], "s": ""},
                            "q": "\"\\/\b\f\n\r\t\u0000\u001f\u007f<>&'",
                            "big": 9007199254740993,
                            "neg": -9223372036854775808,
                        },
                    )
                ],
            ),
        ],
        "tools": [SEARCH],
    },
    "a result that is an object": {
        "messages": [
            *ASK,
            assistant("", tool_calls=[call("clock", {})]),
            result({"hour": 12, "zone": None, "exact": True, "late": 0.5, "name": "it's \"noon\""}),
        ],
        "add_generation_prompt": True,
    },
    "thinking off": {
        "messages": ASK,
        "add_generation_prompt": True,
        "enable_thinking": False,
    },
    "thinking on": {"messages": ASK, "add_generation_prompt": True, "enable_thinking": True},
    "thoughts in the content": {
        "messages": [
            user("One?"),
            assistant("<think>\nHmm, 1.\n</think>\n\nTwo."),
            user("Three?"),
            assistant("<think>\nHmm, 3.\n</think>\n\nFour."),
        ]
    },
    "thoughts apart": {
        "messages": [
            user("One?"),
            assistant("Two.", reasoning_content="First.\n"),
            user("Three?"),
            assistant(
                "\n\nLet me look.",
                reasoning_content="\nSecond.",
                tool_calls=[call("clock", {})],
            ),
            result("noon"),
            assistant("Four.", reasoning_content=None),
        ],
        "tools": [CLOCK],
        "add_generation_prompt": True,
        "enable_thinking": True,
    },
    "a date of one's own": {
        "messages": ASK,
        "tools": [WEATHER],
        "date_string": "1 Jan 2030",
        "tools_in_user_message": False,
        "add_generation_prompt": True,
    },
    "documents": {
        "messages": ASK,
        "documents": [
            {"title": "Wetter", "text": "In Köln regnet es.\nImmer."},
            {"doc_id": "b-2", "text": "<none>", "facts": {"z": [1.5, None], "a": "\"é\""}},
        ],
        "add_generation_prompt": True,
    },
    "built-in tools and arguments by keyword": {
        "messages": [
            *ASK,
            assistant(None, tool_calls=[call("search", {"query": "Köln", "top": 3})]),
            result(["wet", 1, None]),
        ],
        "builtin_tools": ["search", "code_interpreter"],
        "custom_tools": [CLOCK],
        "reasoning_effort": "high",
        "model_identity": "You are Ünï.",
        "tools_in_user_message": False,
    },
    "roles that do not alternate": {"messages": [user("One?"), user("Two?")]},
    "an unknown role": {"messages": [user("One?"), {"role": "critic", "content": "No."}]},
    "raise": {"messages": [user("raise")]},
    "nothing": {"messages": []},
    "parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}],
        "add_generation_prompt": True,
    },
}


def expressions():
    answers = {}
    for line in EXPRESSIONS.strip("\n").splitlines():
        try:
            text = environment().from_string("{{ " + line + " }}").render(**GIVEN)
            answers[line] = {"text": text}
        except Exception as error:
            answers[line] = {"failed": str(error)}
    return {"given": GIVEN, "answers": answers}


def own_variables(name):
    return next((own for start, own in VARIABLES.items() if name.startswith(start)), {})


def main():
    files = {path.stem: path for path in sorted((SHARED / "templates").glob("*.jinja"))}
    assert len(files) == 4, f"expected the four templates of {SHARED}/templates"
    own = {path.stem: path for path in sorted(HERE.glob("**/*.jinja"))}
    templates = []
    for name, path in (files | own).items():
        template = environment().from_string(path.read_text(encoding="utf-8"))
        variables = own_variables(name)
        answers = {
            title: rendered(template, {**variables, **request})
            for title, request in CONVERSATIONS.items()
        }
        folder = "shared" if name in files else str(path.parent.relative_to(HERE))
        templates.append({"name": name, "folder": folder, "variables": variables, "rendered": answers})
    golden = {
        "made_by": f"make_templates.py with jinja2 {jinja2.__version__}",
        "unix_seconds": UNIX_SECONDS,
        "conversations": CONVERSATIONS,
        "expressions": expressions(),
        "templates": templates,
    }
    text = json.dumps(golden, ensure_ascii=True, indent=1)
    (HERE / "templates.json").write_text(text + "\n", encoding="utf-8")


main()
