//! Sizes of a list of pods in the formats of the API server, and of the fields that the agent reads.

use anyhow::{Context, Result};
use futures::AsyncReadExt as _;
use kube::Client;
use serde::Serialize;
use serde_json::{Value, json};

/// Page size of the agent's list requests.
pub(super) const PAGE: usize = 500;

/// Average bytes per object in a format, over one page.
#[derive(Debug, Serialize)]
pub(crate) struct Form {
    pub(super) form: &'static str,
    pub(super) bytes: f64,
}

/// Name, path, `Accept` header and compression of each request.
const FORMS: [(&str, &str, &str, bool); 7] = [
    ("pod, JSON", "/api/v1/pods", "application/json", false),
    ("pod, JSON, gzip in pages of 500", "/api/v1/pods", "application/json", true),
    ("pod, protobuf", "/api/v1/pods", "application/vnd.kubernetes.protobuf", false),
    (
        "pod, metadata alone (PartialObjectMetadata)",
        "/api/v1/pods",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        false,
    ),
    ("Node, JSON", "/api/v1/nodes", "application/json", false),
    ("Service, JSON", "/api/v1/services", "application/json", false),
    (
        "EndpointSlice of 50 pods, JSON",
        "/apis/discovery.k8s.io/v1beta1/endpointslices",
        "application/json",
        false,
    ),
];

/// Requests a page in each format.
pub(super) async fn forms(client: &Client) -> Result<Vec<Form>> {
    let mut forms = Vec::new();
    for (form, path, accept, gzip) in FORMS {
        let (body, count) = page(client, path, accept, gzip).await.context(form)?;
        forms.push(Form { form, bytes: body.len() as f64 / count as f64 });
    }
    let (body, count) = page(client, "/api/v1/pods", "application/json", false).await?;
    let list: Value = serde_json::from_slice(&body).context("a list of pods is no JSON")?;
    let items = list["items"].as_array().context("a list of pods has no items")?;
    let bytes: usize = items.iter().map(|pod| trimmed(pod).to_string().len()).sum();
    forms.push(Form {
        form: "pod, what the agent reads of it, JSON",
        bytes: bytes as f64 / count as f64,
    });
    Ok(forms)
}

/// Bytes of a page, and the number of objects in it.
async fn page(client: &Client, path: &str, accept: &str, gzip: bool) -> Result<(Vec<u8>, usize)> {
    let mut request = hyper::Request::get(format!("{path}?limit={PAGE}")).header("Accept", accept);
    if gzip {
        request = request.header("Accept-Encoding", "gzip");
    }
    let mut body = Vec::new();
    client.request_stream(request.body(Vec::new())?).await?.read_to_end(&mut body).await?;
    let list = hyper::Request::get(format!("{path}?limit={PAGE}")).body(Vec::new())?;
    let list: Value = client.request(list).await?;
    let count = list["items"].as_array().map_or(0, Vec::len);
    anyhow::ensure!(count > 0, "an empty list");
    Ok((body, count))
}

/// The fields of a pod that the agent reads (`agent/kube/src/convert/fields.rs`).
fn trimmed(pod: &Value) -> Value {
    let kept = |of: &Value, names: &[&str]| -> Value {
        let fields = names.iter().filter(|name| !of[**name].is_null());
        fields
            .map(|name| ((*name).to_owned(), of[*name].clone()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let containers = pod["spec"]["containers"].as_array().map_or(&[][..], Vec::as_slice);
    let containers: Vec<Value> = containers.iter().map(|one| kept(one, &["ports"])).collect();
    let mut spec = kept(&pod["spec"], &["nodeName", "hostNetwork"]);
    spec["containers"] = json!(containers);
    json!({
        "metadata": kept(&pod["metadata"], &[
            "name", "namespace", "uid", "resourceVersion", "labels", "creationTimestamp", "deletionTimestamp",
        ]),
        "spec": spec,
        "status": kept(&pod["status"], &["phase", "podIP", "podIPs"]),
    })
}
