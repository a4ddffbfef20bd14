//! Values of fields that are not supported, but which real clients send though they ask for
//! nothing.

use serde_json::{Value, json};

/// Whether this field may as well be absent.
pub fn is_no_op(name: &str, value: &Value) -> bool {
    if value.is_null() {
        return true;
    }
    match name {
        "tools" | "functions" | "tool_calls" | "annotations" | "stop_token_ids" | "documents"
        | "bad_words" => value.as_array().is_some_and(Vec::is_empty),
        // Whether to call what is not there; with tools it is those that are refused.
        "tool_choice" | "function_call" => value == "none" || value == "auto",
        // Without tools there are no calls to run side by side.
        "parallel_tool_calls" => value.is_boolean(),
        "response_format" => *value == json!({"type": "text"}),
        "modalities" => *value == json!(["text"]),
        "service_tier" => value == "auto" || value == "default",
        "verbosity" => value == "medium",
        "prompt_cache_retention" => value == "in_memory" || value == "in-memory",
        "store"
        | "background"
        | "echo"
        | "continue_final_message"
        | "include_stop_str_in_output"
        | "use_beam_search"
        | "return_tokens_as_token_ids"
        | "return_token_strs"
        | "stream" => *value == json!(false),
        "add_generation_prompt" | "skip_special_tokens" | "spaces_between_special_tokens" => {
            *value == json!(true)
        }
        "length_penalty" => value.as_f64() == Some(1.0),
        "min_tokens" | "priority" => value.as_f64() == Some(0.0),
        "suffix" => value == "",
        // They say who asks, or help a cache, and never change an answer.
        "user" | "safety_identifier" | "prompt_cache_key" => value.is_string(),
        "metadata" => value.is_object(),
        _ => false,
    }
}
