//! `fornax bench serve`: load on a running OpenAI server.

use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;

use crate::bench::progress::Progress;
use crate::bench::serve::client::Server;
use crate::bench::serve::load::{Arrival, run as run_load};
use crate::bench::serve::measured::{Limits, machine_form, text};
use crate::bench::serve::workload::{Length, MOST_TOKENS, Workload};
use crate::misuse::{at_least_one, milliseconds, misuse};
use crate::output;

/// Requests a second, at least: fewer than one in eleven days measure nothing, and a wait that is
/// longer than clocks count cannot be.
const LEAST_RATE: f64 = 1e-6;

/// Put load on a running OpenAI server and time its answers
#[derive(Args)]
#[command(after_help = "\
Any server that speaks the protocol will do: fornax serve, llama-server, vLLM. Prompts are random
token ids to /v1/completions; with --chat or --turns random words to /v1/chat/completions.

Examples:
  fornax bench serve --url http://127.0.0.1:8080 --clients 8 --requests 64
  fornax bench serve --url http://127.0.0.1:8080 --rate 2 --requests 100 --max-first-token 500
  fornax bench serve --url http://127.0.0.1:8080 --shared-prefix 600 --clients 4 --requests 16
  fornax bench serve --url http://127.0.0.1:8080 --turns 4 --clients 2 --requests 8 --json")]
pub struct Arguments {
    /// Where the server is
    #[arg(long, default_value = "http://127.0.0.1:8080", value_name = "URL")]
    url: String,
    /// Which model to ask for [default: the first that the server names]
    #[arg(long, value_name = "NAME")]
    model_name: Option<String>,
    /// A key to show
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Users at once: each asks again when its answer has come
    #[arg(long, value_name = "N", default_value_t = 8, conflicts_with = "rate", value_parser = at_least_one)]
    clients: usize,
    /// Instead of users: requests a second on average, at random times
    #[arg(long, value_name = "X")]
    rate: Option<f64>,
    /// Requests in all; of conversations, how many
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    requests: usize,
    /// Tokens of a prompt: a length, or a range of lengths
    #[arg(long, value_name = "N", default_value = "150")]
    prompt_tokens: Length,
    /// Tokens of an answer
    #[arg(long, value_name = "N", default_value = "64")]
    output_tokens: Length,
    /// Tokens before the prompt that are the same in all requests
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared_prefix: usize,
    /// Questions of a conversation, each with all that was said before
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    turns: usize,
    /// Ask by chat, in words
    #[arg(long)]
    chat: bool,
    /// Let answers end where the model ends them
    #[arg(long)]
    allow_end: bool,
    /// The same seed asks the same
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    limits: GoodWithin,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(next_help_heading = "What counts as good")]
struct GoodWithin {
    /// First token within so many milliseconds
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    max_first_token: Option<f64>,
    /// Further tokens on average within so many milliseconds
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    max_inter_token: Option<f64>,
    /// The whole answer within so many milliseconds
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    max_total: Option<f64>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    if arguments.shared_prefix > MOST_TOKENS {
        let prefix = arguments.shared_prefix;
        misuse!("--shared-prefix {prefix}: give at most {MOST_TOKENS} tokens");
    }
    let arrival = match arguments.rate {
        Some(rate) if rate >= LEAST_RATE && rate.is_finite() => Arrival::Open { rate },
        Some(rate) => misuse!("--rate {rate}: give requests a second, {LEAST_RATE} or more"),
        None => Arrival::Closed {
            clients: arguments.clients,
        },
    };
    let server = Server::new(&arguments.url, arguments.api_key.clone())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the system has no means to wait for a server")?;
    let told = runtime.block_on(async {
        let model = match &arguments.model_name {
            Some(name) => name.clone(),
            None => server.model().await?,
        };
        let workload = Workload {
            model,
            prompt: arguments.prompt_tokens,
            output: arguments.output_tokens,
            shared_prefix: arguments.shared_prefix,
            turns: arguments.turns,
            chat: arguments.chat,
            ignore_end: !arguments.allow_end,
            seed: arguments.seed,
        };
        let progress = Arc::new(Progress::new(
            arguments.requests.saturating_mul(arguments.turns),
        ));
        let measured = run_load(server, workload, arrival, arguments.requests, progress).await?;
        let limits = Limits {
            first_token: arguments.limits.max_first_token,
            inter_token: arguments.limits.max_inter_token,
            total: arguments.limits.max_total,
        };
        anyhow::Ok(machine_form(&measured, &limits))
    })?;
    match arguments.json {
        true => output::json(&told),
        false => output::exact(text(&told).as_bytes()),
    }
}
