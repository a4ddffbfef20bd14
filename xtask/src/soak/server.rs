//! The server's process: started, watched from outside, ended by a signal.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::http::Connection;

/// How long the server lets clients take.
#[derive(Clone, Copy)]
pub struct Limits {
    pub head: Duration,
    pub body: Duration,
    pub idle: Duration,
    pub stall: Duration,
    pub drain: Duration,
}

/// Bytes of the largest body.
pub const BODY_LIMIT: usize = 256 << 10;

/// A server of the built-in model; killed when this is dropped.
pub struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts one that has little of everything, so that everything runs out.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(program: &Path, limits: &Limits) -> Result<Self> {
        let seconds = |limit: Duration| limit.as_secs().to_string();
        let mut process = Command::new(program)
            .args(["serve", "--port", "0", "--parallel", "16", "--queue", "64"])
            .args(["--kv-memory", "12MiB", "--log", "off"])
            .args(["--body-limit", &BODY_LIMIT.to_string()])
            .args(["--head-timeout", &seconds(limits.head)])
            .args(["--body-timeout", &seconds(limits.body)])
            .args(["--idle-timeout", &seconds(limits.idle)])
            .args(["--stall-timeout", &seconds(limits.stall)])
            .args(["--drain", &seconds(limits.drain)])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{}: build it first", program.display()))?;
        let stdout = process.stdout.take().context("invariant: it is piped")?;
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let address = lines
            .filter_map(|line| line.strip_prefix("listening on http://").map(str::to_owned))
            .next();
        let address = address.context("the server ended before it listened")?;
        Ok(Self {
            process,
            address: address.parse()?,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it counted.
    ///
    /// # Errors
    /// It does not answer.
    pub fn metrics(&self) -> Result<String> {
        let mut connection = Connection::open(self.address)?;
        connection.send("GET", "/metrics", "")?;
        Ok(connection.receive()?.body)
    }

    /// Waits until it has nothing to do, and asserts that it holds nothing then.
    ///
    /// # Errors
    /// Something runs, waits or holds a page after so long.
    pub fn wait_for_rest(&self, limit: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            let metrics = self.metrics()?;
            let mut held = Vec::new();
            for name in [
                "vllm:num_requests_running",
                "vllm:num_requests_waiting",
                "vllm:kv_cache_usage_perc",
            ] {
                let value = value(&metrics, name)?;
                if value > 0.0 {
                    held.push(format!("{name} {value}"));
                }
            }
            if held.is_empty() {
                return Ok(());
            }
            if start.elapsed() > limit {
                bail!("{limit:?} after the last client: {}", held.join(", "));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Its memory.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn resident_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.process.id());
        let status = fs::read_to_string(&path).context("memory is read from Linux only")?;
        let mut lines = status.lines();
        let resident = lines.find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = resident.and_then(|told| told.trim().strip_suffix(" kB"));
        let kibibytes: u64 = kibibytes
            .with_context(|| format!("{path} has no VmRSS"))?
            .parse()?;
        Ok(kibibytes * 1024)
    }

    /// Tells it to end, and answers with which code it does.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn stop(mut self, limit: Duration) -> Result<i32> {
        let id = self.process.id().to_string();
        Command::new("kill").args(["-TERM", &id]).status()?;
        let start = Instant::now();
        while start.elapsed() < limit {
            if let Some(status) = self.process.try_wait()? {
                return status.code().context("the server was killed");
            }
            thread::sleep(Duration::from_millis(50));
        }
        bail!("the server did not end within {limit:?}")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A number that was counted.
///
/// # Errors
/// It was not.
pub fn value(metrics: &str, name: &str) -> Result<f64> {
    let is_it = |line: &&str| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with('{'))
    };
    let line = metrics.lines().find(is_it);
    let value = line.and_then(|line| line.rsplit(' ').next());
    let value = value.with_context(|| format!("the server does not count {name}"))?;
    Ok(value.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_whole_name() {
        let metrics = "# TYPE a gauge\na_b{m=\"x y\"} 1\na{m=\"x\"} 2.5\n";
        assert_eq!(value(metrics, "a").unwrap(), 2.5);
        assert!(value(metrics, "b").is_err());
    }
}
