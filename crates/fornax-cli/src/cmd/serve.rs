//! `fornax serve`: the model for other programs, over the OpenAI protocol.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use fornax::{Model, PromptPace};
use fornax_server::{Address, Config, Ended, Listen, LogForm, Server, Timeouts, Tls};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::misuse::{at_least_one, misuse};
use crate::model::{Load, prompt_pace};
use crate::{output, size};

/// Serve the model over HTTP, in the protocol of OpenAI
#[derive(Args)]
#[command(after_help = "\
What is served goes to stdout once the address is open, the log to stderr. Ctrl-C or SIGTERM ends
it: no new connection is taken, running answers are finished, the exit code is 0. If a step of the
engine panics, its requests are answered with 500 and the exit code is 1: let a supervisor start it
again.

Examples:
  fornax serve
  fornax serve --model qwen3-0.6b-q8_0.gguf --port 8000 --parallel 8 --kv-memory 2GiB
  fornax serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem --api-key-file keys.txt
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is 12 + 30?\"}]}'")]
pub struct Arguments {
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    address: Door,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    access: Access,
    /// What clients call the model [default: the file's name without its ending]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How requests are logged
    #[arg(long, value_enum, default_value_t = Log::Text)]
    log: Log,
    /// Write the text of every prompt into the log too
    #[arg(long)]
    log_prompts: bool,
}

#[derive(Args)]
struct Door {
    /// Address to listen on; any but a loopback address should have an --api-key
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 lets the system choose
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Listen on a socket in the file system instead
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port"])]
    socket: Option<PathBuf>,
    /// Certificate in PEM form, and behind it those that vouch for it; encrypts all connections
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key in PEM form
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

#[derive(Args)]
#[command(next_help_heading = "Limits")]
struct Limits {
    /// Answers that are made at once
    #[arg(
        long,
        default_value_t = 4,
        value_name = "N",
        visible_alias = "sequences",
        value_parser = at_least_one
    )]
    parallel: usize,
    /// Answers that may wait while others run; one more is refused with 429
    #[arg(long, default_value_t = 256, value_name = "N")]
    queue: usize,
    /// How much of new prompts a step takes while answers go on, so that these keep their pace:
    /// `2.75x` lets a step take 2.75 times as long as without, 64 is that many tokens, 0 no limit
    #[arg(long, default_value = "2.75x", value_name = "TIMES|TOKENS", value_parser = prompt_pace)]
    prompt_chunk: PromptPace,
    /// Bytes of the largest request
    #[arg(long, default_value_t = 8 << 20, value_name = "BYTES", value_parser = at_least_one)]
    body_limit: usize,
    /// Seconds that a client has for the head of a request
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    head_timeout: u64,
    /// Seconds that a client has for the body of a request
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    body_timeout: u64,
    /// Seconds that a connection may be idle between two requests
    #[arg(long, default_value_t = 75, value_name = "SECONDS")]
    idle_timeout: u64,
    /// Seconds after which a client that takes nothing of its answer is given up
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    stall_timeout: u64,
    /// Seconds that running answers have once the server is told to stop
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    drain: u64,
}

#[derive(Args)]
#[command(next_help_heading = "Access")]
struct Access {
    /// A key that clients must show; may be repeated
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// A file with such keys, one a line; lines that are empty or begin with `#` are skipped
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Let web pages of this origin call, `*` for any; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Log {
    /// Nothing
    Off,
    /// A line a request, for people
    Text,
    /// A JSON object a line, for programs
    Json,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let config = config(arguments)?;
    log_panics(config.log);
    let Limits {
        parallel,
        prompt_chunk,
        ..
    } = arguments.limits;
    let model = arguments.load.load_for_many(parallel, prompt_chunk)?;
    let log = config.log;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the system has no threads for the server")?;
    let ended = runtime.block_on(serve(arguments, model, config))?;
    match ended {
        Ended::Drained => say(log, "stopped", "stopped; every answer was finished"),
        Ended::CutOff(requests) => {
            let told =
                format!("stopped; {requests} requests had no whole answer when --drain was over");
            say(log, "stopped", &told);
        }
        Ended::EngineFailed(reason) => {
            if let LogForm::Json = log {
                // Who reads it reads JSON alone.
                log.write("failed", &reason);
                exit(1);
            }
            bail!(
                "the engine stopped: {reason}; every request that it had was answered with an error; start the server again"
            );
        }
    }
    Ok(())
}

/// Lets a panic be an entry of a log for programs, where it would be lines between entries.
fn log_panics(log: LogForm) {
    if let LogForm::Json = log {
        std::panic::set_hook(Box::new(move |panic| {
            log.write("panic", &panic.to_string())
        }));
    }
}

/// Tells of the server itself: on stderr as it is, or as an entry of a log for programs.
fn say(log: LogForm, event: &str, message: &str) {
    match log {
        LogForm::Json => log.write(event, message),
        LogForm::Off | LogForm::Text => output::say(message),
    }
}

async fn serve(arguments: &Arguments, model: Model, config: Config) -> Result<Ended> {
    // Taken over before the address is told, so that who reads it may stop us at once.
    let stop = stop_signal(config.log)?;
    let (log, keys) = (config.log, config.api_keys.clone());
    let statement = statement(&model, &config);
    let scheme = match (&arguments.address.socket, &config.tls) {
        (Some(_), _) => "",
        (None, Some(_)) => "https://",
        (None, None) => "http://",
    };
    let server = Server::bind(model, config, &arguments.address.listen()).await?;
    let address = server.address();
    if let Some(warning) = warning(address, &keys) {
        say(log, "warning", &warning);
    }
    let told = output::exact(format!("{statement}listening on {scheme}{address}\n").as_bytes());
    // Clients are served whether or not somebody reads this.
    told.or_else(|error| match output::is_closed_pipe(&error) {
        true => Ok(()),
        false => Err(error),
    })?;
    Ok(server.run(stop).await)
}

impl Door {
    fn listen(&self) -> Listen {
        match &self.socket {
            Some(path) => Listen::Unix(path.clone()),
            None => Listen::Tcp {
                host: self.host.clone(),
                port: self.port,
            },
        }
    }
}

/// What is served, for a person.
fn statement(model: &Model, config: &Config) -> String {
    let (pages, page_size) = model.kv_pages();
    format!(
        "model        {} ({})\nbackend      {}\ncontext      {} tokens, {} answers at once\nKV cache     {pages} pages × {page_size} tokens = {} tokens, {}\n",
        output::harmless(&config.model_name),
        output::harmless(model.name()),
        model.backend(),
        model.context(),
        model.sequences(),
        pages * page_size,
        size::told(model.kv_bytes()),
    )
}

/// What must be said of an address that others can reach without a key.
fn warning(address: &Address, keys: &[String]) -> Option<String> {
    let open = keys.is_empty() && address.is_public();
    open.then(|| {
        format!(
            "WARNING: {address} can be reached from other machines, and no key is asked for:\n\
             WARNING: whoever reaches it can use this model. Give --api-key or --api-key-file, or\n\
             WARNING: listen on 127.0.0.1."
        )
    })
}

/// Ready at the first Ctrl-C or SIGTERM; the second ends the program at once.
fn stop_signal(log: LogForm) -> Result<impl Future<Output = ()> + Send + 'static> {
    let taken = |kind| signal(kind).context("signals cannot be taken over");
    let mut interrupt = taken(SignalKind::interrupt())?;
    let mut terminate = taken(SignalKind::terminate())?;
    Ok(async move {
        either(&mut interrupt, &mut terminate).await;
        let told = "stopping: running answers are finished first; once more stops at once";
        say(log, "stopping", told);
        tokio::spawn(async move {
            either(&mut interrupt, &mut terminate).await;
            exit(130);
        });
    })
}

async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}

fn config(arguments: &Arguments) -> Result<Config> {
    let (limits, access) = (&arguments.limits, &arguments.access);
    let mut api_keys = access.api_key.clone();
    if let Some(path) = &access.api_key_file {
        api_keys.extend(keys_of(path)?);
    }
    if api_keys.iter().any(String::is_empty) {
        misuse!("an --api-key is empty; give it a character");
    }
    if api_keys.iter().any(|key| key.trim() != key) {
        misuse!(
            "an --api-key begins or ends with a space, which no client can send; leave it away"
        );
    }
    if let Some(origin) = access.cors_origin.iter().find(|origin| !is_origin(origin)) {
        misuse!(
            "--cors-origin {origin:?} is no origin; write one as https://example.com or http://localhost:3000, or *"
        );
    }
    let name = arguments.name.clone();
    let name = name.unwrap_or_else(|| arguments.load.file.served_name());
    if name.is_empty() {
        misuse!("--name is empty; give the name that clients ask for");
    }
    let tls = arguments
        .address
        .tls_cert
        .clone()
        .zip(arguments.address.tls_key.clone());
    Ok(Config {
        tls: tls.map(|(cert, key)| Tls { cert, key }),
        timeouts: Timeouts {
            head: Duration::from_secs(limits.head_timeout),
            body: Duration::from_secs(limits.body_timeout),
            idle: Duration::from_secs(limits.idle_timeout),
            stall: Duration::from_secs(limits.stall_timeout),
        },
        log_prompts: arguments.log_prompts,
        queue: limits.queue,
        body_limit: limits.body_limit,
        drain: Duration::from_secs(limits.drain),
        api_keys,
        cors_origins: access.cors_origin.clone(),
        log: match arguments.log {
            Log::Off => LogForm::Off,
            Log::Text => LogForm::Text,
            Log::Json => LogForm::Json,
        },
        ..Config::new(name)
    })
}

/// Whether a browser may call this an origin: scheme and host, and a port where it is not the scheme's.
fn is_origin(text: &str) -> bool {
    let of_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let of_host = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    let is_whole =
        |part: &str, may_be: &dyn Fn(char) -> bool| !part.is_empty() && part.chars().all(may_be);
    let parts = text.split_once("://");
    let is_address = parts
        .is_some_and(|(scheme, host)| is_whole(scheme, &of_scheme) && is_whole(host, &of_host));
    text == "*" || text == "null" || is_address
}

/// The keys in a file; one without any must not open the door to everybody.
fn keys_of(path: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{}: the key file cannot be read", path.display()))?;
    let keys = keys_in(&text);
    if keys.is_empty() {
        bail!(
            "{}: the key file holds no key; write one a line",
            path.display()
        );
    }
    Ok(keys)
}

/// One a line, but for lines that are empty or a comment behind `#`.
fn keys_in(text: &str) -> Vec<String> {
    // Some editors begin a file with a mark that nobody sees.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().map(str::trim);
    let keys = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    keys.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`a_panic_is_an_entry_of_the_log`] runs in a process of its own, for its log.
    #[test]
    #[ignore = "panics, for another test to see how that is told"]
    fn panics() {
        log_panics(LogForm::Json);
        std::thread::Builder::new()
            .spawn(|| panic!("two\nlines"))
            .unwrap()
            .join()
            .unwrap_err();
    }

    #[test]
    fn a_key_file_may_say_whose_its_keys_are() {
        let text =
            "\u{feff}# of the office\nfirst\r\n\n  # of the lab, from May on\n second#2 \n#\n";
        assert_eq!(keys_in(text), ["first", "second#2"]);
    }

    #[test]
    fn an_origin_is_a_scheme_and_a_host() {
        for origin in [
            "*",
            "null",
            "https://example.com",
            "http://localhost:3000",
            "http://[::1]:80",
        ] {
            assert!(is_origin(origin), "{origin}");
        }
        for other in [
            "",
            "example.com",
            "https://",
            "https://x/",
            "https://x y",
            "://x",
            "https://a,b",
            "not an origin",
            "://x",
            "https://a,b",
        ] {
            assert!(!is_origin(other), "{other}");
        }
    }

    #[test]
    fn a_panic_is_an_entry_of_the_log() {
        let mut tests = std::process::Command::new(std::env::current_exe().unwrap());
        tests.args(["--ignored", "--exact", "cmd::serve::tests::panics"]);
        let ran = tests.arg("--nocapture").output().unwrap();
        let log = String::from_utf8(ran.stderr).unwrap();
        let entry: serde_json::Value = serde_json::from_str(&log).unwrap();
        assert_eq!(entry["event"], "panic", "{log}");
        let message = entry["message"].as_str().unwrap();
        assert!(
            message.contains("serve.rs:") && message.ends_with("two\nlines"),
            "{log}"
        );
    }

    #[test]
    fn an_open_door_is_told_loudly() {
        let warned = |address: &str, keys: &[String]| {
            let warning = warning(&Address::Tcp(address.parse().unwrap()), keys);
            warning.is_some_and(|warning| warning.contains(address))
        };
        for address in ["0.0.0.0:80", "192.0.2.7:80", "[::]:80"] {
            assert!(warned(address, &[]), "{address}");
            assert!(!warned(address, &["key".to_owned()]), "{address}");
        }
        assert!(!warned("127.0.0.1:80", &[]) && !warned("[::1]:80", &[]));
        assert_eq!(warning(&Address::Unix("/tmp/x".into()), &[]), None);
    }
}
