//! The log on standard error.

use std::fmt::{self, Write as _};
use std::io::IsTerminal;

use anyhow::{Context, Result};
use netpold_core::printable::printable;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::format::{self, Writer};

use crate::cli::LogFormat;

/// Parses the filter of `--log`.
///
/// # Errors
/// The text is not a valid filter.
pub(crate) fn log_filter(given: &str) -> Result<EnvFilter> {
    let log = EnvFilter::builder()
        .parse(given)
        .with_context(|| format!("--log {given}: a level is error, warn, info, debug or trace"))?;
    // kube's client and watcher log failed requests without address and cause; the source logs outages itself.
    let quiet = |log: EnvFilter, target: &str| match format!("{target}=off").parse() {
        Ok(directive) if !given.contains(target) => log.add_directive(directive),
        _ => log,
    };
    Ok(quiet(quiet(log, "kube_client::client"), "kube_runtime::watcher"))
}

/// Starts logging to standard error; may be called once per process.
///
/// # Errors
/// The process has a logger already.
pub(crate) fn start_log(kind: LogFormat, filter: EnvFilter) -> Result<()> {
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match kind {
        LogFormat::Text => {
            let ansi = std::io::stderr().is_terminal();
            let fields = format::debug_fn(log_field).delimited(" ");
            log.fmt_fields(fields).with_target(false).with_ansi(ansi).try_init()
        }
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))
}

/// Writes a field of a log line in the format of tracing's own formatter, but printable.
fn log_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    if field.name() != "message" {
        write!(writer, "{}=", field.name())?;
    }
    let mut text = String::new();
    write!(text, "{value:?}")?;
    writer.write_str(&printable(&text))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_name_is_no_line_of_the_log() {
        use tracing_subscriber::field::MakeExt as _;
        let log = Log::default();
        let made = log.clone();
        let fields = format::debug_fn(log_field).delimited(" ");
        let subscriber = tracing_subscriber::fmt()
            .fmt_fields(fields)
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(move || made.clone())
            .finish();
        let forged = "x\n INFO all is well\x1b[2J";
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(pod = %forged, other = forged, count = 3, "policy {forged}: refused");
        });
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let name = r"x\n INFO all is well\u{1b}[2J";
        assert_eq!(
            log,
            format!(" WARN policy {name}: refused pod={name} other=\"{name}\" count=3\n")
        );
    }
}
