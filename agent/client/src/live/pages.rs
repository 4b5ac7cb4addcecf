//! Lists of the API server as raw JSON, page by page.

use anyhow::{Result, anyhow};
use kube::api::ListParams;
use kube::core::Request;
use netpold_core::printable::printable;
use netpold_kube::cluster::failure::Failure;
use netpold_kube::cluster::{Lister, PAGE};

use super::args::{ClusterArgs, SILENCE};

/// Reads a list, such as `/api/v1/pods`, page by page; `page` takes the JSON and returns the next page's token.
///
/// # Errors
/// The cluster cannot be reached, the list may not be read, or a page cannot be parsed.
pub async fn pages(
    args: &ClusterArgs,
    path: &str,
    mut page: impl FnMut(&str) -> Result<Option<String>>,
) -> Result<()> {
    let lister = Lister::open(args.access(SILENCE)).await?;
    let client = lister.client();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let failed = |error| {
            let text = Failure::from_error(error).text(&format!("list {path}"), lister.server());
            anyhow!(printable(&text).into_owned())
        };
        let request = Request::new(path).list(&params);
        let request = request.map_err(kube::Error::BuildRequest).map_err(failed)?;
        let text = client.request_text(request).await.map_err(failed)?;
        params.continue_token = page(&text)?.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(());
        }
    }
}
