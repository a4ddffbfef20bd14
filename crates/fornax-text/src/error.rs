//! What can be wrong with a vocabulary, a template or a request, in words for
//! the person who has to mend it. Knows nothing of how the errors are shown.

/// An error of this crate: what is wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A metadata key is missing or of another type than it must be.
    #[error(transparent)]
    Metadata(#[from] fornax_gguf::Error),

    /// The file's kind of tokenizer or pre-tokenizer is not one of ours.
    #[error("{file}: {key} is {found:?}, which is not supported; supported: {supported}")]
    Unsupported {
        /// The GGUF file.
        file: String,
        /// The metadata key.
        key: &'static str,
        /// Its value.
        found: String,
        /// The values that are supported.
        supported: String,
    },

    /// The vocabulary contradicts itself.
    #[error("{file}: {key}: {problem}; the file is damaged or was converted wrongly, get it again")]
    Vocabulary {
        /// The GGUF file.
        file: String,
        /// The metadata key that is wrong.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },

    /// A token id that the vocabulary does not have.
    #[error(
        "token {token} is not in the vocabulary, whose ids are 0 to {last}; was it made with another model?"
    )]
    UnknownToken {
        /// The id.
        token: u32,
        /// The last id of the vocabulary.
        last: u32,
    },

    /// A stop string without a character would end every answer before it begins.
    #[error("stop string {index} is empty; leave it out or give it a character")]
    EmptyStopString {
        /// Its place in the list, from 0.
        index: usize,
    },

    /// All of them are kept and compared with every byte, for each answer.
    #[error("the stop strings have more than {most} bytes in all; give fewer or shorter ones")]
    LongStopStrings {
        /// What they may have.
        most: usize,
    },

    /// The file carries no chat template.
    #[error(
        "{file}: no chat template (metadata key tokenizer.chat_template); give a template, or complete plain text"
    )]
    NoChatTemplate {
        /// The GGUF file.
        file: String,
    },

    /// The chat template cannot be read.
    #[error("{template}, line {line}: {problem}; mend the template or give another")]
    TemplateSyntax {
        /// Where the template comes from.
        template: String,
        /// Line of the template, from 1; 0 where the engine does not know it.
        line: usize,
        /// What the template engine says.
        problem: String,
    },

    /// The chat template refuses the conversation with a message of its own (`raise_exception`).
    #[error(
        "the chat template refuses this conversation: {message} ({template}, line {line}); change the request or give another template"
    )]
    TemplateRefused {
        /// The template's own words.
        message: String,
        /// Where the template comes from.
        template: String,
        /// Line of the template, from 1; 0 where the engine does not know it.
        line: usize,
    },

    /// The chat template failed on this conversation.
    #[error(
        "{template}, line {line}: {problem}; change the request to what the template expects or give another template"
    )]
    TemplateFailed {
        /// Where the template comes from.
        template: String,
        /// Line of the template, from 1; 0 where the engine does not know it.
        line: usize,
        /// What the template engine says.
        problem: String,
    },

    /// The request object is not one that a chat template can be given.
    #[error("chat request: {place} {problem}")]
    Request {
        /// Path in the request, such as `messages[3].role`.
        place: String,
        /// What is wrong and what is expected.
        problem: String,
    },
}
