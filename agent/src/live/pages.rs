//! Lists as the API server writes them, page by page.

use anyhow::{Result, anyhow};
use kube::api::ListParams;
use kube::core::Request;

use super::{ClusterArgs, SILENCE};
use crate::printable::printable;
use crate::source::cluster::Lister;
use crate::source::cluster::failure::Failure;

/// Objects a page, as kubectl and client-go ask for.
const PAGE: u32 = 500;

/// Shows the pages of a list, such as `/api/v1/pods`; `page` gives the token of the next one.
///
/// # Errors
/// The cluster cannot be reached, the list may not be read, or a page is not understood.
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
            let text = Failure::of(error).text(&format!("list {path}"), lister.server());
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
