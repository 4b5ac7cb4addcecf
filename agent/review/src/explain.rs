//! `netpold explain`: whether policy allows a connection, and why.

mod args;
mod node;
mod nodes;
mod print;
mod remarks;

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use netpold_api::probe::SourceVerdict;
use netpold_client::details::read_details;
use netpold_client::live;
use netpold_client::offline::{self, Reviewed};
use netpold_client::output::{Output, is_reader_open};
use netpold_core::explain::Verdict;
use netpold_core::printable::printable;
use netpold_core::probe::{Party, Probe};
use serde_json::{Map, Value};

pub use self::args::ExplainArgs;
use self::args::probe;
use self::nodes::NodeAnswers;
use self::print::{ALLOWED, CANNOT_TELL, DENIED, print_verdict};
use crate::judge::{Judge, service_named};
use crate::unenforced;

/// Most pods of a workload that are compared.
const REPLICAS: usize = 32;
/// Lines per batch, answered in parallel on all processors.
const BATCH: usize = 8192;

/// Context of questions: the objects, and the default namespace.
struct ExplainContext {
    judge: Judge,
    /// Namespace of workloads named without one.
    own: String,
}

impl ExplainContext {
    /// Replaces workloads in a probe by pods.
    fn resolved(&self, probe: Probe) -> Result<Probe, String> {
        if let Party::Service(key) = &probe.from {
            return Err(format!("svc/{key}: a Service sends no packets; name its pods"));
        }
        let resolve = |party| offline::resolve(self.judge.cluster(), party, &self.own);
        let to = service_named(self.judge.cluster(), probe.to, &self.own);
        Ok(Probe { from: resolve(probe.from)?, to: resolve(to)?, ..probe })
    }

    /// Returns the reason for which the verdict on workloads depends on the pod: those of a workload may differ by address
    /// and node. `asked` has the workloads, `resolved` a pod of each; an unknown verdict has another reason.
    fn depends_on_pod(&self, asked: &Probe, resolved: &Probe, verdict: Verdict) -> Option<String> {
        if verdict == Verdict::Unknown {
            return None;
        }
        let cluster = self.judge.cluster();
        let pods = |party: &Party, resolved: &Party| match (party, resolved) {
            (Party::Pod(key), Party::Pod(first)) if key != first => {
                let pods = offline::pods_named(cluster, key, &self.own).into_iter();
                let pods: Vec<Party> =
                    pods.take(REPLICAS).map(|pod| Party::Pod(pod.key.clone())).collect();
                if pods.is_empty() { vec![resolved.clone()] } else { pods }
            }
            (_, _) => vec![resolved.clone()],
        };
        let (from, to) = (pods(&asked.from, &resolved.from), pods(&asked.to, &resolved.to));
        let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (from, to)));
        pairs.into_iter().find_map(|(from, to)| {
            let probe = Probe { from: from.clone(), to: to.clone(), ..resolved.clone() };
            let (other, _) = self.judge.verdict(&probe).with_reason();
            (other != verdict && from != to).then(|| {
                let (word, other) = (verdict_text(verdict), verdict_text(other));
                format!(
                    "it depends on the pod: {word} for {resolved}, {other} for {probe}; name a pod"
                )
            })
        })
    }
}

/// Prints the answer to standard output. Returns the exit status.
///
/// # Errors
/// Manifests or probes cannot be read.
pub fn run(args: &ExplainArgs) -> Result<u8> {
    if let Some(socket) = node::socket(args) {
        return node::run(args, socket);
    }
    let (manifests, namespace) = (args.manifests.as_deref(), args.namespace.as_deref());
    if let Some(directory) = manifests {
        offline::refuse_kustomization("explain", "--manifests", directory, args.review.depth)
            .context("cannot tell")?;
    }
    let own = live::namespace(manifests, &args.cluster, namespace)?;
    let reviewed = live::all_objects(manifests, args.review.depth, &args.cluster, namespace);
    let Reviewed { objects, undecoded, unread, .. } = reviewed.context("cannot tell")?;
    let details = read_details(manifests, args.review.depth, &args.cluster, &own);
    let details = details.context("cannot tell")?;
    let mut objects = offline::stand_in(objects);
    let one = args.probes.is_none().then(|| probe(args)).transpose()?;
    if let Some(probe) = &one {
        offline::add_replicas(&mut objects, [&probe.from, &probe.to]);
    }
    let judge = Judge::new(objects, details, &args.review.pod_cidrs, manifests.is_some());
    let judge = judge.with_unread(undecoded, unread);
    let asked = ExplainContext { judge, own };
    let (cluster, details) = (asked.judge.cluster(), asked.judge.details());
    let Some(probe) = one else {
        let foreign = remarks::foreign(details, |_| true);
        let foreign = unenforced::list_unenforced(&foreign);
        foreign.iter().for_each(|text| anstream::eprintln!("netpold: {}", printable(text)));
        return args.probes.as_deref().map_or(Ok(CANNOT_TELL), |file| answer_all(&asked, file));
    };
    let named = probe.clone();
    let probe = asked.resolved(probe).map_err(|reason| anyhow::anyhow!("{reason}"))?;
    let mut answer = asked.judge.explain(&probe);
    if let Some(reason) = asked.depends_on_pod(&named, &probe, answer.verdict) {
        (answer.verdict, answer.reason) = (Verdict::Unknown, Some(reason));
    }
    let foreign = remarks::add(&mut answer, cluster, details);
    let nodes = match args.nodes {
        true => Some(nodes::request_answers(&args.cluster, cluster, &probe, &answer)?),
        false => None,
    };
    let differs = nodes.as_ref().is_some_and(NodeAnswers::differ);
    let sender = answer.egress.as_ref().map(|egress| &egress.pod);
    // The sender's node knows names and addresses that the objects lack, but not the backend that it will choose.
    let deciding = nodes.as_ref().filter(|_| answer.services.is_empty());
    let deciding = deciding.and_then(|nodes| nodes.deciding(sender));
    let lines = deciding.map_or_else(|| answer.lines(), |(_, answer)| answer.lines.clone());
    if let Some((verdict, _)) = deciding {
        (answer.verdict, answer.reason) = (verdict, None);
    }
    match args.output {
        Output::Text => {
            nodes.iter().for_each(NodeAnswers::print_differences);
            print_verdict(answer.verdict, &lines);
            if let Some(text) = unenforced::list_unenforced(&foreign) {
                anstream::println!("{}", printable(&text));
            }
            nodes.iter().for_each(NodeAnswers::print_others);
        }
        Output::Json => {
            let mut json = serde_json::to_value(&answer)?;
            if let Some(fields) = json.as_object_mut() {
                give_verdict(fields, answer.verdict, answer.reason.as_deref());
                nodes.iter().try_for_each(|nodes| nodes.describe(fields))?;
                if !foreign.is_empty() {
                    fields.insert("not_enforced".into(), foreign.into());
                }
            }
            is_reader_open(writeln!(io::stdout(), "{json:#}"))?;
        }
    }
    if let Some(reason) = &answer.reason {
        anstream::eprintln!("netpold: cannot tell: {}", printable(reason));
    }
    Ok(match answer.verdict {
        _ if differs => CANNOT_TELL,
        Verdict::Allow => ALLOWED,
        Verdict::Deny => DENIED,
        Verdict::Unknown => CANNOT_TELL,
    })
}

/// Returns the answer to a probe as `explain -o json` prints it, with the lines of the text as `lines`.
///
/// # Errors
/// The answer cannot be converted to JSON.
pub fn document(judge: &Judge, probe: &Probe) -> Result<Value> {
    let mut answer = judge.explain(probe);
    let foreign = remarks::add(&mut answer, judge.cluster(), judge.details());
    let mut lines = answer.lines();
    lines.extend(unenforced::list_unenforced(&foreign));
    let mut json = serde_json::to_value(&answer)?;
    if let Some(fields) = json.as_object_mut() {
        give_verdict(fields, answer.verdict, answer.reason.as_deref());
        fields.insert("lines".into(), lines.into());
    }
    Ok(json)
}

fn verdict_text(verdict: Verdict) -> &'static str {
    SourceVerdict::from(verdict).verb()
}

/// Sets `verdict` to `allow` or `deny`; an unknown verdict sets `error` instead.
fn give_verdict(fields: &mut Map<String, Value>, verdict: Verdict, reason: Option<&str>) {
    for field in ["verdict", "error", "reason"] {
        fields.remove(field);
    }
    match verdict {
        Verdict::Unknown => fields.insert("error".into(), reason.unwrap_or_default().into()),
        known @ (Verdict::Allow | Verdict::Deny) => {
            fields.insert("verdict".into(), known.to_string().into())
        }
    };
}

/// Answers JSON lines in their order.
fn answer_all(asked: &ExplainContext, file: &Path) -> Result<u8> {
    let mut lines: Box<dyn BufRead> = if offline::is_standard_input(file) {
        offline::claim_standard_input("--probes")?;
        Box::new(io::stdin().lock())
    } else {
        let open = File::open(file);
        let open = open.with_context(|| format!("cannot read --probes {}", file.display()))?;
        Box::new(BufReader::new(open))
    };
    let mut output = BufWriter::new(io::stdout().lock());
    let mut status = ALLOWED;
    loop {
        let batch = read_batch(&mut lines)
            .with_context(|| format!("cannot read --probes {}", file.display()))?;
        if batch.is_empty() {
            is_reader_open(output.flush())?;
            return Ok(status);
        }
        for (answer, told) in answer_batch(asked, &batch) {
            if !told {
                status = CANNOT_TELL;
            }
            if !is_reader_open(writeln!(output, "{answer}"))? {
                return Ok(status);
            }
        }
    }
}

fn read_batch(lines: &mut dyn BufRead) -> io::Result<Vec<Vec<u8>>> {
    let mut batch = Vec::new();
    while batch.len() < BATCH {
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if !line.trim_ascii().is_empty() {
            batch.push(line);
        }
    }
    Ok(batch)
}

fn answer_batch(asked: &ExplainContext, batch: &[Vec<u8>]) -> Vec<(Value, bool)> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = batch.len().div_ceil(threads).max(1);
    let work = |lines: &[Vec<u8>]| lines.iter().map(|l| answer_line(asked, l)).collect();
    std::thread::scope(|scope| {
        let parts: Vec<_> = batch.chunks(part).map(|p| scope.spawn(move || work(p))).collect();
        let join = |part: std::thread::ScopedJoinHandle<'_, Vec<_>>| {
            part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        parts.into_iter().flat_map(join).collect()
    })
}

/// Returns the line with its `verdict`, or with `error`, and whether there is a verdict.
fn answer_line(asked: &ExplainContext, line: &[u8]) -> (Value, bool) {
    let mut fields = match serde_json::from_slice::<Map<String, Value>>(line) {
        Ok(fields) => fields,
        Err(error) => return (failed(Map::new(), &format!("not a JSON object: {error}")), false),
    };
    let probe = match serde_json::from_slice::<Probe>(line) {
        Ok(probe) => probe,
        Err(error) => return (failed(fields, &error.to_string()), false),
    };
    let resolved = match asked.resolved(probe.clone()) {
        Ok(resolved) => resolved,
        Err(reason) => return (failed(fields, &reason), false),
    };
    let (mut verdict, mut reason) = asked.judge.verdict(&resolved).with_reason();
    if let Some(depends) = asked.depends_on_pod(&probe, &resolved, verdict) {
        (verdict, reason) = (Verdict::Unknown, Some(depends));
    }
    give_verdict(&mut fields, verdict, reason.as_deref());
    (Value::Object(fields), verdict != Verdict::Unknown)
}

fn failed(mut fields: Map<String, Value>, error: &str) -> Value {
    fields.remove("verdict");
    fields.insert("error".into(), error.into());
    Value::Object(fields)
}
