//! `cargo xtask eval`: the held-out evaluation of the built-in model, answered by Fornax itself.
//!
//! The questions and the rules are those of `training/eval`; its README says what they are.

mod judge;

use std::io::{Write, stderr, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use fornax::text::Special;
use fornax::{Chat, GenerateOptions, LoadOptions, Model};
use serde::Deserialize;
use serde_json::{Value, json};

/// Every skill has a file of questions.
const SKILLS: [&str; 6] = [
    "arithmetic",
    "facts",
    "memory",
    "json",
    "tool_calls",
    "tool_answers",
];
/// Longest answer in tokens.
const ANSWER: usize = 200;

/// Report the built-in model's share of right answers by skill, and its story perplexity.
#[derive(Args)]
pub struct Arguments {
    /// The model [default: the built-in one]
    #[arg(long)]
    model: Option<PathBuf>,
    /// Questions of each skill, and stories [default: all]
    #[arg(long)]
    limit: Option<usize>,
    /// Fail when a skill is below this share of right answers
    #[arg(long, default_value_t = 0.95)]
    least: f64,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Print each wrong answer
    #[arg(long)]
    wrong: bool,
}

/// A line of a skill's file.
#[derive(Deserialize)]
struct Question {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    enable_thinking: bool,
    expect: Value,
    check: judge::Check,
}

/// Runs the command.
pub fn run(arguments: &Arguments, root: &Path) -> Result<()> {
    let built_in = root.join("crates/fornax-cli/model/fornax-mini.gguf");
    let path = arguments.model.clone().unwrap_or(built_in);
    let model = Model::load(path, &LoadOptions::default())?;
    let folder = root.join("training/eval");
    let limit = arguments.limit.unwrap_or(usize::MAX);
    let mut report = Vec::new();
    for skill in SKILLS {
        let questions: Vec<Question> = lines(&folder, skill)?;
        let questions = &questions[..questions.len().min(limit)];
        let mut right = 0;
        for (index, question) in questions.iter().enumerate() {
            let _ = write!(stderr(), "\r{skill} {}/{} ", index + 1, questions.len());
            let answer = answer(&model, question)?;
            match judge::is_right(
                &answer,
                question.enable_thinking,
                &question.expect,
                question.check,
            ) {
                true => right += 1,
                false if arguments.wrong => {
                    let expected = &question.expect;
                    let _ = writeln!(stderr(), "\nexpected {expected}\nanswered {answer:?}");
                }
                false => {}
            }
        }
        report.push((skill, right, questions.len()));
    }
    let perplexity = perplexity(&model, &folder, limit)?;
    let _ = writeln!(stderr());
    print(&report, perplexity, arguments.json)?;
    let failed =
        |(_, right, of): &&(&str, usize, usize)| (*right as f64) < arguments.least * *of as f64;
    if let Some((skill, right, of)) = report.iter().find(failed) {
        bail!(
            "{skill}: {right} of {of} answers are right, below {}",
            arguments.least
        );
    }
    Ok(())
}

fn answer(model: &Model, question: &Question) -> Result<String> {
    let mut chat = Chat::new().think(question.enable_thinking);
    for message in &question.messages {
        chat = chat.message(message.clone());
    }
    if let Some(tools) = &question.tools {
        chat = chat.tools(tools.clone());
    }
    let options = GenerateOptions {
        temperature: Some(0.0),
        max_tokens: Some(ANSWER),
        ..GenerateOptions::default()
    };
    Ok(model.chat(&chat, &options)?.text()?)
}

/// e to the mean surprise of a story's tokens after the first, over all stories.
fn perplexity(model: &Model, folder: &Path, limit: usize) -> Result<f64> {
    #[derive(Deserialize)]
    struct Story {
        text: String,
    }
    let tokenizer = model.tokenizer();
    let end = tokenizer
        .eos()
        .context("the model's file names no end-of-text token")?;
    let stories: Vec<Story> = lines(folder, "stories")?;
    let (mut surprise, mut count) = (0.0, 0);
    for (index, story) in stories.iter().take(limit).enumerate() {
        let _ = write!(
            stderr(),
            "\rstories {}/{} ",
            index + 1,
            stories.len().min(limit)
        );
        let mut tokens = tokenizer.encode(&story.text, Special::Plain);
        tokens.push(end);
        let positions = 0..tokens.len() - 1;
        let logits = model.logits(tokens.clone(), positions)?;
        let rows = logits.chunks_exact(model.config().vocabulary);
        surprise += rows
            .zip(&tokens[1..])
            .map(|(row, &token)| cost(row, token))
            .sum::<f64>();
        count += tokens.len() - 1;
    }
    Ok((surprise / count as f64).exp())
}

/// −ln p of a token under a row of logits.
fn cost(logits: &[f32], token: u32) -> f64 {
    let greatest = logits.iter().fold(f32::MIN, |greatest, x| greatest.max(*x));
    let sum: f64 = logits.iter().map(|x| f64::from(x - greatest).exp()).sum();
    sum.ln() - f64::from(logits[token as usize] - greatest)
}

fn lines<T: for<'a> Deserialize<'a>>(folder: &Path, name: &str) -> Result<Vec<T>> {
    let path = folder.join(format!("{name}.jsonl"));
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let parse = |(index, line)| {
        serde_json::from_str(line).with_context(|| format!("{}:{}", path.display(), index + 1))
    };
    text.lines().enumerate().map(parse).collect()
}

fn print(report: &[(&str, usize, usize)], perplexity: f64, json: bool) -> Result<()> {
    let mut out = stdout().lock();
    if json {
        let skills: Value = report
            .iter()
            .map(|(skill, right, of)| ((*skill).to_owned(), json!({ "right": right, "of": of })))
            .collect::<serde_json::Map<_, _>>()
            .into();
        writeln!(
            out,
            "{}",
            json!({ "skills": skills, "story_perplexity": perplexity })
        )?;
        return Ok(());
    }
    writeln!(out, "| skill | right | share |\n|---|---|---|")?;
    for (skill, right, of) in report {
        let share = 100.0 * *right as f64 / *of as f64;
        writeln!(out, "| {skill} | {right} of {of} | {share:.1} % |")?;
    }
    writeln!(out, "| story perplexity | {perplexity:.3} | |")?;
    Ok(())
}
