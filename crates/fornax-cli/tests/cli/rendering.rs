//! What a request is before a model sees it: prompts and tokens.

use super::*;

#[test]
fn text_becomes_tokens_and_comes_back_byte_for_byte() {
    let original = "Grüße, 東京! 🦊\n\n\tA <|im_end|> that is text.  \r\n";
    for extra in [&[][..], &["--special"]] {
        let arguments = [&["tokenize"], extra, &["-"]].concat();
        let ids = piped(&arguments, original.as_bytes());
        assert!(ids.status.success());
        let back = piped(&["detokenize"], &ids.stdout);
        assert_eq!(back.stdout, original.as_bytes(), "{extra:?}");
    }
    let marker = json_of(&["tokenize", "--special", "--json", "<|im_end|>"]);
    assert_eq!(marker["count"], 1);
    let plain = json_of(&["tokenize", "--json", "<|im_end|>"]);
    assert!(plain["count"].as_u64().unwrap() > 1);
    assert_eq!(
        plain["pieces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|piece| piece.as_str().unwrap())
            .collect::<String>(),
        "<|im_end|>"
    );
    assert_eq!(text(&["tokenize", ""]), "\n");
    let bytes = b"ab\xff\xf0\x9f c\xc3";
    let ids = piped(&["tokenize", "-"], bytes);
    assert_eq!(piped(&["detokenize"], &ids.stdout).stdout, bytes);
}

#[test]
fn a_request_renders_to_its_prompt() {
    let request = json!({ "messages": [{ "role": "user", "content": "Hi <&> \u{1F98A}" }] });
    let path = scratch("request.json", &request.to_string());
    let path = path.to_str().unwrap();
    let prompt = text(&[
        "template",
        "--set",
        "add_generation_prompt=true",
        "--set",
        "enable_thinking=false",
        path,
    ]);
    assert!(
        prompt.contains("<|im_start|>user\nHi <&> \u{1F98A}<|im_end|>\n"),
        "{prompt}"
    );
    assert!(
        prompt.ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        "{prompt}"
    );

    let template = scratch(
        "template.jinja",
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ x }}",
    );
    let template = [
        "template",
        "--template",
        template.to_str().unwrap(),
        "--set",
        "x=[1, 2]",
        path,
    ];
    assert_eq!(text(&template), "[user]Hi <&> \u{1F98A}[1, 2]");
    assert!(failure(&["template", "--set", "x=oops", path], 2).contains("oops"));
}

#[test]
fn a_rendered_request_with_tools_is_answered_by_a_call() {
    let request = json!({
        "messages": [{ "role": "user", "content": "What is the weather in Paris?" }],
        "tools": [{ "type": "function", "function": {
            "name": "get_weather",
            "description": "Get the weather of a city",
            "parameters": { "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] },
        } }],
        "add_generation_prompt": true,
        "enable_thinking": false,
    });
    let path = scratch("tools.json", &request.to_string());
    let prompt = output(&["template", path.to_str().unwrap()]).stdout;
    let answer = piped(
        &["run", "--raw", "--special", "--temperature", "0", "-"],
        &prompt,
    );
    let answer = String::from_utf8(answer.stdout).unwrap();
    let call = answer
        .trim()
        .strip_prefix("<tool_call>\n")
        .and_then(|call| call.strip_suffix("\n</tool_call>"));
    let call: Value = serde_json::from_str(call.unwrap_or_else(|| panic!("{answer}"))).unwrap();
    assert_eq!(
        call,
        json!({ "name": "get_weather", "arguments": { "city": "Paris" } })
    );
}

#[test]
fn a_template_of_the_callers_answers_too() {
    let chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let template = scratch("chatml.jinja", chatml);
    let arguments = [
        "run",
        "--temperature",
        "0",
        "--template",
        template.to_str().unwrap(),
        "What is 12 + 30?",
    ];
    assert!(text(&arguments).contains("42"));
    let message = failure(&[&arguments[..5], &["--no-think", "Hi"]].concat(), 1);
    assert!(message.contains("enable_thinking"), "{message}");
}
