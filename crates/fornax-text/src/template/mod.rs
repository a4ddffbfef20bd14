//! The chat template a model brings along: a request object in, the prompt out,
//! byte for byte as Hugging Face `transformers` would write it. Must not know
//! HTTP, tokens of the answer, or any model by name.

mod arguments;
mod as_python;
mod assigned;
mod bounded;
mod budget;
mod characters;
mod clock;
mod end_of_turn;
mod entities;
mod environment;
mod filters;
mod generation;
mod growth;
mod loops;
mod macros;
mod markup;
mod nesting;
mod objects;
mod own_stack;
mod pprint;
mod python;
mod request;
mod signatures;
mod slicing;
mod string_methods;
mod text_filters;
mod to_json;
#[cfg(test)]
mod trial;
mod weighed;
mod wordwrap;

use std::path::Path;

use fornax_gguf::Gguf;
use minijinja::Value;
use minijinja::machinery::{CodeGenerator, eval, make_string_output};
use minijinja::value::Serde;
use serde_json::{Map, Value as Json};

use crate::error::Error;
use crate::tokenizer::Tokenizer;
use budget::Budget;
pub use clock::Clock;
use own_stack::on_own_stack;
pub use request::from_wire;

/// What the engine calls a template.
const TEMPLATE: &str = "chat";

/// A compiled chat template.
///
/// The Jinja dialect is that of `transformers` 4.5x: `trim_blocks`, `lstrip_blocks`, loop
/// controls, `tojson` as Python's `json.dumps`, `raise_exception`, `strftime_now`,
/// `{% generation %}`, and the methods of Python's strings, dictionaries and lists.
///
/// What a rendering may take is bounded, whatever the template says: 20 million instructions, 256 MiB
/// of text in all, 32 MiB in one, lists 200 deep. So one from a file that nobody trusts fails with a
/// message within seconds.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    /// The text of the template.
    chat: String,
    /// Of the one for requests with tools, where the file has its own.
    tool_use: Option<String>,
    clock: Clock,
    /// File or model that the template is of, for errors.
    origin: String,
    /// `bos_token` and its kin, as far as the vocabulary has them.
    markers: Map<String, Json>,
}

impl ChatTemplate {
    /// Reads the chat template of `gguf`, and the one for requests with tools if it has its own.
    ///
    /// # Errors
    /// `Error::NoChatTemplate` where the file has none; a template that cannot be read.
    pub fn from_gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<ChatTemplate, Error> {
        let metadata = gguf.metadata();
        let source = metadata.optional_str("tokenizer.chat_template")?;
        let source = source.ok_or_else(|| Error::NoChatTemplate {
            file: gguf.source().to_owned(),
        })?;
        // A server's clients read it too: where the file lies is not theirs to know.
        let file = Path::new(gguf.source()).file_name().unwrap_or_default();
        let origin = format!("{}: tokenizer.chat_template", file.display());
        let mut template = ChatTemplate::from_source(&origin, source, Some(tokenizer))?;
        if let Some(source) = metadata.optional_str("tokenizer.chat_template.tool_use")? {
            template.tool_use = Some(readable(&template.origin, source)?);
        }
        Ok(template)
    }

    /// Reads a template from `source`; `origin` names it in errors. The `tokenizer` gives the
    /// texts of `bos_token`, `eos_token`, `unk_token` and `pad_token`; without one they are
    /// undefined unless a request has them.
    ///
    /// # Errors
    /// A template that cannot be read, with its line.
    pub fn from_source(
        origin: &str,
        source: &str,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<ChatTemplate, Error> {
        Ok(ChatTemplate {
            chat: readable(origin, source)?,
            tool_use: None,
            clock: Clock::Local,
            origin: origin.to_owned(),
            markers: tokenizer.map(marker_texts).unwrap_or_default(),
        })
    }

    /// Takes the time that `strftime_now` tells from `clock`; without this it is the local time.
    pub fn with_clock(mut self, clock: Clock) -> ChatTemplate {
        self.clock = clock;
        self
    }

    /// The prompt that `request` renders to.
    ///
    /// `request` is an object with `messages`, and as wanted `tools`, `documents`,
    /// `add_generation_prompt` (false where absent) and any other variable of the template, such
    /// as `enable_thinking`. It is rendered as it is; [`from_wire`] brings a request of OpenAI's
    /// protocol into the form that templates expect.
    ///
    /// # Errors
    /// A request that is not of this form, a template that refuses the conversation (with its own
    /// words) or fails on it.
    pub fn render(&self, request: &Json) -> Result<String, Error> {
        let variables = request::variables(request, &self.markers)?;
        let wants_tools = variables.get("tools").is_some_and(|tools| !tools.is_null());
        let source = self.tool_use.as_ref().filter(|_| wants_tools);
        let source = source.unwrap_or(&self.chat);
        let render = || rendered(source, self.clock, Value::from(Serde(&variables)));
        let rendered = on_own_stack(render).map_err(|error| Error::TemplateFailed {
            template: self.origin.clone(),
            line: 0,
            problem: format!("the system gives no thread to render it on: {error}"),
        })?;
        // The engine must not take the program with it where an assertion of its own fails.
        let rendered = rendered.unwrap_or_else(|| Err(filters::panicked()));
        rendered.map_err(|error| self.failure(&error))
    }

    /// Whether the template looks at this variable of a request.
    pub fn uses(&self, variable: &str) -> bool {
        let environment = environment::new(self.clock, &Budget::new());
        let template = environment.template_from_str(&self.chat);
        template.is_ok_and(|template| template.undeclared_variables(false).contains(variable))
    }

    /// The tokens that end an answer: those of the file's metadata and the control token that
    /// this template writes behind an assistant's words.
    pub fn stop_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let mut tokens = tokenizer.stop_tokens();
        let end = end_of_turn::find(self, tokenizer);
        tokens.extend(end.filter(|token| !tokens.contains(token)));
        tokens
    }

    fn failure(&self, error: &minijinja::Error) -> Error {
        let template = self.origin.clone();
        let line = error.line().unwrap_or(0);
        match environment::refusal(error) {
            Some(message) => Error::TemplateRefused {
                message,
                template,
                line,
            },
            None => Error::TemplateFailed {
                template,
                line,
                problem: python::describe(error),
            },
        }
    }
}

/// The source that the engine gets, which it can read.
fn readable(origin: &str, source: &str) -> Result<String, Error> {
    // Jinja takes every kind of line end for the one.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = generation::without_generation_tags(&source);
    let refuse = |line, problem| Error::TemplateSyntax {
        template: origin.to_owned(),
        line,
        problem,
    };
    if let Some((line, problem)) = nesting::too_deep(&source, environment::syntax()) {
        return Err(refuse(line, problem.to_owned()));
    }
    let engine = environment::new(Clock::Local, &Budget::new());
    if let Ok(template) = engine.template_from_str(&source) {
        let undeclared = template.undeclared_variables(false);
        let is_undeclared = |name: &str| undeclared.contains(name);
        if let Some((line, problem)) =
            macros::collecting(&source, environment::syntax(), is_undeclared)
        {
            return Err(refuse(line, problem));
        }
    }
    match bounded::astray(&source, TEMPLATE, environment::syntax()) {
        Ok(None) => Ok(source),
        Ok(Some((line, problem))) => Err(refuse(line, problem)),
        Err(error) => Err(refuse(error.line().unwrap_or(0), python::describe(&error))),
    }
}

/// What the template writes, within a budget of its own.
fn rendered(source: &str, clock: Clock, variables: Value) -> Result<String, minijinja::Error> {
    let environment = environment::new(clock, &Budget::new());
    let template = bounded::read(source, TEMPLATE, environment::syntax())?;
    let mut code = CodeGenerator::new(TEMPLATE, source);
    code.compile_stmt(&template);
    let (instructions, blocks) = code.finish();
    let mut text = String::new();
    let mut out = make_string_output(&mut text);
    let plain = minijinja::AutoEscape::None;
    eval(
        &environment,
        &instructions,
        variables,
        &blocks,
        &mut out,
        plain,
    )
    .map(drop)?;
    drop(out);
    Ok(text)
}

fn marker_texts(tokenizer: &Tokenizer) -> Map<String, Json> {
    let markers = [
        ("bos_token", tokenizer.bos()),
        ("eos_token", tokenizer.eos()),
        ("unk_token", tokenizer.unknown()),
        ("pad_token", tokenizer.padding()),
    ];
    let text = |(name, token): (&str, Option<u32>)| {
        let bytes = tokenizer.token_bytes(token?)?;
        let text = String::from_utf8_lossy(bytes).into_owned();
        Some((name.to_owned(), Json::String(text)))
    };
    markers.into_iter().filter_map(text).collect()
}

#[cfg(test)]
mod tests;
