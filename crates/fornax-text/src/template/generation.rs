//! Takes the `{% generation %}` tags out of a template. `transformers` marks an
//! assistant's words with them for training; they print nothing, and the template
//! engine does not know them. Knows just enough of Jinja's lexis to find them.

/// `source` with every `generation` block turned into a `with` block: that is a scope of its
/// own too, and the tags' trimming of white space (`{%- … -%}`) and the line numbers stay.
pub(crate) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let length = tag_length(tag);
        out.push_str(&rewritten(&tag[..length]));
        rest = &tag[length..];
    }
    out + rest
}

/// Length of the tag that `text` begins with, or of the single brace.
fn tag_length(text: &str) -> usize {
    if text.starts_with("{#") {
        return text.find("#}").map_or(text.len(), |end| end + 2);
    }
    if text.starts_with("{{") {
        return code_length(text, "}}");
    }
    if !text.starts_with("{%") {
        return 1;
    }
    let length = code_length(text, "%}");
    if words(&text[..length]) == "raw" {
        return length + raw_length(&text[length..]);
    }
    length
}

/// Length up to and with `close`, which does not count inside a string.
fn code_length(text: &str, close: &str) -> usize {
    let mut quote = None;
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(2) {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if character == '\\' => escaped = true,
            Some(open) if character == open => quote = None,
            Some(_) => {}
            None if matches!(character, '"' | '\'') => quote = Some(character),
            None if text[at..].starts_with(close) => return at + close.len(),
            None => {}
        }
    }
    text.len()
}

/// Length of raw text, with the tag that ends it.
fn raw_length(text: &str) -> usize {
    let mut at = 0;
    while let Some(start) = text[at..].find("{%") {
        let tag = at + start;
        let end = text[tag..]
            .find("%}")
            .map_or(text.len(), |end| tag + end + 2);
        if words(&text[tag..end]) == "endraw" {
            return end;
        }
        at = tag + 2;
    }
    text.len()
}

/// What stands in a statement tag, without its delimiters.
fn words(tag: &str) -> &str {
    tag.trim_start_matches("{%")
        .trim_end_matches("%}")
        .trim_matches(['-', '+'])
        .trim()
}

fn rewritten(tag: &str) -> String {
    if !tag.starts_with("{%") {
        return tag.to_owned();
    }
    match words(tag) {
        "generation" => tag.replace("generation", "with"),
        "endgeneration" => tag.replace("endgeneration", "endwith"),
        _ => tag.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::without_generation_tags;

    #[test]
    fn only_statements_are_rewritten() {
        for (source, expected) in [
            (
                "a{% generation %}b{% endgeneration %}c",
                "a{% with %}b{% endwith %}c",
            ),
            (
                "{%- generation -%}\n{%+endgeneration-%}",
                "{%- with -%}\n{%+endwith-%}",
            ),
            (
                "{{ '{% generation %}' }}{# {% generation %} #}",
                "{{ '{% generation %}' }}{# {% generation %} #}",
            ),
            (
                "{{ \"\\\"}}{% generation %}\" }}",
                "{{ \"\\\"}}{% generation %}\" }}",
            ),
            (
                "{% raw %}{% generation %}{%- endraw %}{% generation %}",
                "{% raw %}{% generation %}{%- endraw %}{% with %}",
            ),
            (
                "{% if generation %}{ {% set x = '%}' %}",
                "{% if generation %}{ {% set x = '%}' %}",
            ),
            ("{% raw %}é{%", "{% raw %}é{%"),
            ("{{ unclosed", "{{ unclosed"),
            ("{", "{"),
        ] {
            assert_eq!(without_generation_tags(source), expected, "{source}");
        }
    }
}
