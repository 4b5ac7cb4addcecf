//! The part of a kubelet that serves `kubectl exec`: no kubelet runs in tests.
//!
//! The API server forwards an exec to `https://NODE:10250/exec/NAMESPACE/POD/CONTAINER` and passes the bytes of the
//! upgraded connection through. The kubelet's side speaks WebSocket's `v4.channel.k8s.io`: each message begins with a
//! byte, 0 for standard input, 1 for output, 2 for errors, 3 for a `metav1.Status` at the end. The commands are real
//! processes in the network namespace of the node, or of the container's pod. As with a container runtime, the end of a
//! connection sends no signal to its process; only the standard input ends.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};
use futures::{Sink, SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_tungstenite::accept_hdr_async;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::host::Host;
use crate::netns::Netns;

/// Port of kubelets for the API server.
const PORT: u16 = 10250;
const PROTOCOL: &str = "v4.channel.k8s.io";
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;

/// The environment of `exec` in a pod.
#[derive(Clone, Debug, Default)]
pub struct Container {
    /// Programs: the path inside, and the file to run for it.
    pub programs: BTreeMap<String, PathBuf>,
    /// The complete environment.
    pub environment: BTreeMap<String, String>,
    /// Bytes of standard output after which the connection breaks.
    pub breaks_off_after: Option<usize>,
    /// Network namespace of the pod; `None`: that of the node.
    pub netns: Option<Arc<Netns>>,
}

/// A node's kubelet, as described above. Dropping it ends its processes.
#[derive(Debug)]
pub struct Kubelet {
    shared: Arc<KubeletState>,
    // Dropped last; all tasks end with it.
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct KubeletState {
    netns: Arc<Netns>,
    /// By `namespace/pod/container`.
    containers: Mutex<BTreeMap<String, Container>>,
    running: AtomicUsize,
}

impl Kubelet {
    /// Serves port 10250 on all of a node's IPv4 addresses.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn start(node: &Host) -> Result<Self> {
        let listener = node.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)))??;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("no runtime")?;
        let shared = Arc::new(KubeletState {
            netns: Arc::clone(node.netns()),
            containers: Mutex::default(),
            running: AtomicUsize::new(0),
        });
        let acceptor = acceptor(node.name())?;
        runtime.spawn(serve(Arc::clone(&shared), listener, acceptor));
        Ok(Self { shared, runtime: Some(runtime) })
    }

    /// Adds a running container, by `namespace/pod/container`.
    pub fn runs(&self, name: &str, container: Container) {
        let mut all = self.shared.containers.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(name.to_owned(), container);
    }

    /// Number of commands that run in containers now.
    #[must_use]
    pub fn commands(&self) -> usize {
        self.shared.running.load(Ordering::SeqCst)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Makes an acceptor with a self-signed certificate: the API server checks none by default.
fn acceptor(name: &str) -> Result<TlsAcceptor> {
    let made = rcgen::generate_simple_self_signed([name.to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn serve(
    shared: Arc<KubeletState>,
    listener: TcpListener,
    acceptor: TlsAcceptor,
) -> Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        let (shared, acceptor) = (Arc::clone(&shared), acceptor.clone());
        tokio::spawn(async move {
            // The client sees the end of the connection.
            let _ = exec(&shared, stream, &acceptor).await;
        });
    }
}

/// An exec request, from its path and query.
#[derive(Debug, Default)]
struct ExecRequest {
    container: String,
    command: Vec<String>,
    input: bool,
}

impl ExecRequest {
    fn of(path: &str, query: &str) -> Self {
        let container = path.strip_prefix("/exec/").unwrap_or_default().to_owned();
        let mut asked = Self { container, ..Self::default() };
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match key {
                "command" => asked.command.push(decoded(value)),
                "input" => asked.input = value == "1" || value == "true",
                _ => {}
            }
        }
        asked
    }
}

/// Decodes `%41` and `+`.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let escaped = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        rest = after;
        match (first, escaped) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn exec(shared: &KubeletState, stream: TcpStream, acceptor: &TlsAcceptor) -> Result<()> {
    let stream = acceptor.accept(stream).await.context("no TLS")?;
    let mut asked = ExecRequest::default();
    #[expect(clippy::result_large_err, reason = "the callback's type is the library's")]
    let answer = |request: &Request, mut response: Response| -> Result<Response, ErrorResponse> {
        asked = ExecRequest::of(request.uri().path(), request.uri().query().unwrap_or_default());
        let protocol = HeaderValue::from_static(PROTOCOL);
        response.headers_mut().insert("Sec-WebSocket-Protocol", protocol);
        Ok(response)
    };
    let (mut sender, mut receiver) = accept_hdr_async(stream, answer).await?.split();
    let container = {
        let all = shared.containers.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&asked.container).cloned()
    };
    let Some((mut child, breaks_off)) = container.as_ref().and_then(|container| {
        Some((start(shared, container, &asked)?, container.breaks_off_after))
    }) else {
        let text = match container {
            Some(_) => absent(asked.command.first().map_or("", String::as_str)),
            None => format!("container not found ({:?})", asked.container),
        };
        let status = json!({ "status": "Failure", "reason": "InternalError", "message": text });
        send(&mut sender, STATUS, status.to_string().as_bytes()).await?;
        return Ok(sender.close().await?);
    };
    shared.running.fetch_add(1, Ordering::SeqCst);
    let mut input = child.stdin.take();
    let (chunks, mut output) = mpsc::channel(1);
    let pipes =
        [pump(STDOUT, child.stdout.take(), &chunks), pump(STDERR, child.stderr.take(), &chunks)];
    drop(chunks);
    let mut left = breaks_off.unwrap_or(usize::MAX);
    let carried = loop {
        tokio::select! {
            chunk = output.recv() => match chunk {
                Some((channel, bytes)) => {
                    let bytes: &[u8] = &bytes;
                    if send(&mut sender, channel, &bytes[..bytes.len().min(left)]).await.is_err() {
                        break false;
                    }
                    left = left.saturating_sub(bytes.len());
                    if left == 0 {
                        break false;
                    }
                }
                None => break true,
            },
            message = receiver.next() => match message {
                Some(Ok(Message::Binary(bytes))) if bytes.first() == Some(&STDIN) => {
                    if let Some(input) = &mut input {
                        let _ = input.write_all(&bytes[1..]).await;
                    }
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => break false,
                Some(Ok(_)) => {}
            },
        }
    };
    drop(input);
    if !carried {
        drop((sender, receiver));
        pipes.iter().for_each(tokio::task::JoinHandle::abort);
        let _ = child.wait().await;
        shared.running.fetch_sub(1, Ordering::SeqCst);
        return Ok(());
    }
    let ended = child.wait().await;
    shared.running.fetch_sub(1, Ordering::SeqCst);
    send(&mut sender, STATUS, status(ended?.code()).to_string().as_bytes()).await?;
    Ok(sender.close().await?)
}

/// Error of containerd and runc for a program that the image lacks.
fn absent(program: &str) -> String {
    format!(
        "error executing command in container: failed to exec in container: failed to start exec \"0\": OCI runtime \
         exec failed: exec failed: unable to start container process: exec: {program:?}: executable file not found in \
         $PATH: unknown"
    )
}

fn start(shared: &KubeletState, container: &Container, asked: &ExecRequest) -> Option<Child> {
    let (program, arguments) = asked.command.split_first()?;
    let netns = container.netns.as_ref().unwrap_or(&shared.netns);
    let command = netns.command(container.programs.get(program)?).ok()?;
    Command::from(command)
        .args(arguments)
        .env_clear()
        .envs(&container.environment)
        .stdin(if asked.input { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .ok()
}

/// Passes the output of a pipe on, until it ends.
fn pump(
    channel: u8,
    pipe: Option<impl AsyncRead + Unpin + Send + 'static>,
    chunks: &mpsc::Sender<(u8, Vec<u8>)>,
) -> tokio::task::JoinHandle<()> {
    let chunks = chunks.clone();
    tokio::spawn(async move {
        let (Some(mut pipe), mut buffer) = (pipe, vec![0; 8192]) else { return };
        while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
            if chunks.send((channel, buffer[..read].to_vec())).await.is_err() {
                return;
            }
        }
    })
}

async fn send(
    sender: &mut (impl Sink<Message, Error = Error> + Unpin),
    channel: u8,
    bytes: &[u8],
) -> Result<()> {
    let message = Message::binary([&[channel], bytes].concat());
    sender.send(message).await.map_err(|error| anyhow!(error))
}

/// A kubelet's status for the end of a command.
fn status(code: Option<i32>) -> Value {
    match code {
        Some(0) => json!({ "metadata": {}, "status": "Success" }),
        code => {
            let code = code.unwrap_or(137).to_string();
            json!({
                "metadata": {},
                "status": "Failure",
                "message": format!("command terminated with non-zero exit code: {code}"),
                "reason": "NonZeroExitCode",
                "details": { "causes": [{ "reason": "ExitCode", "message": code }] },
            })
        }
    }
}
