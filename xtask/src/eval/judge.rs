//! Whether an answer is right, by the rules of `training/eval/README.md`.

use serde::Deserialize;
use serde_json::Value;

/// How an answer is compared with what is expected.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The answer equals the text.
    Exact,
    /// The text is in the answer.
    Contains,
    /// The answer is this JSON value.
    Json,
    /// The answer is nothing but these tool calls.
    ToolCall,
}

/// Whether the model's whole output is right.
pub fn is_right(output: &str, thinking: bool, expect: &Value, check: Check) -> bool {
    let Some(answer) = answer(output, thinking) else {
        return false;
    };
    let text = expect.as_str().unwrap_or_default();
    match check {
        Check::Exact => answer == text,
        Check::Contains => answer.contains(text),
        Check::Json => serde_json::from_str::<Value>(answer).is_ok_and(|value| value == *expect),
        Check::ToolCall => tool_calls(answer).is_some_and(|calls| Value::Array(calls) == *expect),
    }
}

/// What follows the thought; `None` where there is none and should be, or the other way round.
fn answer(output: &str, thinking: bool) -> Option<&str> {
    let answer = match thinking {
        false if output.contains("<think>") || output.contains("</think>") => return None,
        false => output,
        true => {
            let (thought, answer) = output.strip_prefix("<think>\n")?.split_once("</think>")?;
            (!thought.trim().is_empty()).then_some(answer)?
        }
    };
    Some(answer.trim())
}

/// The calls, where the answer holds nothing else.
fn tool_calls(answer: &str) -> Option<Vec<Value>> {
    let mut calls = Vec::new();
    let mut rest = answer;
    while !rest.is_empty() {
        let (call, behind) = rest
            .strip_prefix("<tool_call>\n")?
            .split_once("\n</tool_call>")?;
        calls.push(serde_json::from_str(call).ok()?);
        rest = behind.trim_start();
    }
    Some(calls)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn thoughts_are_there_when_asked_for_and_only_then() {
        let right = |output, thinking| is_right(output, thinking, &json!("42"), Check::Exact);
        assert!(right(" 42\n", false));
        assert!(right("<think>\n6 times 7\n</think>\n\n42", true));
        assert!(!right("<think>\n6 times 7\n</think>\n\n42", false));
        assert!(!right("<think>\n\n</think>\n\n42", true));
        assert!(!right("42", true));
        assert!(!right("43", false));
    }

    #[test]
    fn json_is_compared_by_value_and_type() {
        let right = |output| is_right(output, false, &json!({"a": 1, "b": true}), Check::Json);
        assert!(right("{\"b\": true, \"a\": 1}"));
        assert!(!right("{\"b\": 1, \"a\": 1}"));
        assert!(!right("Here: {\"b\": true, \"a\": 1}"));
    }

    #[test]
    fn tool_calls_stand_alone() {
        let call = json!({"name": "now", "arguments": {}});
        let right = |output: &str, calls: Value| is_right(output, false, &calls, Check::ToolCall);
        let block = format!("<tool_call>\n{call}\n</tool_call>");
        assert!(right(&block, json!([call])));
        assert!(right(&format!("{block}\n{block}"), json!([call, call])));
        assert!(!right(&format!("Sure! {block}"), json!([call])));
        assert!(!right(&block, json!([call, call])));
        assert!(!right("<tool_call>\n{\n</tool_call>", json!([])));
    }
}
