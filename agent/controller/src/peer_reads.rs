//! Reads of peer slices, while writes go on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::{BoxFuture, try_join_all};
use futures::stream::FuturesUnordered;
use kube::Api;
use kube::api::ListParams;
use netpold_api::peer_slice::{PeerSlice, PeerSliceSpec};
use netpold_kube::cluster::PAGE;

/// Timeout of a request.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Most requests for single slices in flight.
const AT_ONCE: usize = 16;
/// Pause after a failed read.
const RETRY: Duration = Duration::from_secs(1);

/// A slice on the API server.
#[derive(Clone, Debug)]
pub(super) struct WrittenSlice {
    pub(super) version: String,
    pub(super) spec: PeerSliceSpec,
}

/// Slices on the API server, by name.
pub(super) type WrittenByName = BTreeMap<String, WrittenSlice>;

/// The read under way, if any.
#[derive(Default)]
pub(super) struct PeerReads {
    requests: FuturesUnordered<BoxFuture<'static, Result<FoundSlices, kube::Error>>>,
    began: Option<Instant>,
    /// Slices that were written since it began, or were being written then: it may have an earlier state of them.
    written: BTreeSet<String>,
    /// Time before which no read begins.
    pause: Option<Instant>,
}

/// Slices that were read.
pub(super) struct FoundSlices {
    /// Names of slices that were requested; `None`: all.
    names: Option<Vec<String>>,
    found: WrittenByName,
}

/// End of a read.
pub(super) struct EndedRead {
    /// Time of its beginning.
    pub(super) began: Instant,
    /// Whether all slices were read.
    pub(super) is_whole: bool,
    /// State of each slice; `None`: it does not exist. Slices that were written meanwhile are not here.
    pub(super) slices: Vec<(String, Option<WrittenSlice>)>,
}

impl PeerReads {
    /// Whether a read may begin.
    pub(super) fn may_begin(&self, now: Instant) -> bool {
        self.began.is_none() && self.pause.is_none_or(|pause| now >= pause)
    }

    /// Begins to read the slices of these names (`None`: all); `in_flight`: slices that are being written.
    pub(super) fn begin(
        &mut self,
        api: &Api<PeerSlice>,
        names: Option<Vec<String>>,
        in_flight: &BTreeSet<String>,
        now: Instant,
    ) {
        self.began = Some(now);
        self.written.clone_from(in_flight);
        self.requests.push(Box::pin(read(api.clone(), names)));
    }

    /// Takes in that a write of a slice begins.
    pub(super) fn begin_write(&mut self, name: &str) {
        if self.began.is_some() {
            self.written.insert(name.to_owned());
        }
    }

    /// Returns the next answer; `None`: no read is under way.
    pub(super) async fn next(&mut self) -> Option<Result<FoundSlices, kube::Error>> {
        self.requests.next().await
    }

    /// Takes in the answer to the read; `known`: names of the slices as known.
    ///
    /// # Errors
    /// The answer is one.
    pub(super) fn end(
        &mut self,
        answer: Result<FoundSlices, kube::Error>,
        known: impl Iterator<Item = String>,
        now: Instant,
    ) -> Result<EndedRead, kube::Error> {
        let began = self.began.take().unwrap_or(now);
        let written = std::mem::take(&mut self.written);
        let FoundSlices { names, mut found } = answer.inspect_err(|_| {
            self.pause = Some(now + RETRY);
        })?;
        let is_whole = names.is_none();
        let all = || known.chain(found.keys().cloned()).collect::<BTreeSet<String>>();
        let names = names.map_or_else(all, |names| names.into_iter().collect());
        let names = names.into_iter().filter(|name| !written.contains(name));
        let slices = names.map(|name| {
            let slice = found.remove(&name);
            (name, slice)
        });
        Ok(EndedRead { began, is_whole, slices: slices.collect() })
    }

    /// Ends the read without an answer.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

async fn read(api: Api<PeerSlice>, names: Option<Vec<String>>) -> Result<FoundSlices, kube::Error> {
    let mut found = WrittenByName::new();
    match &names {
        None => found = list(&api, None).await?,
        Some(names) => {
            for part in names.chunks(AT_ONCE) {
                let reads = part.iter().map(|name| list(&api, Some(name)));
                found.extend(try_join_all(reads).await?.into_iter().flatten());
            }
        }
    }
    Ok(FoundSlices { names, found })
}

/// Returns all slices, or the one of a name.
pub(super) async fn list(
    api: &Api<PeerSlice>,
    name: Option<&str>,
) -> Result<WrittenByName, kube::Error> {
    let mut written = BTreeMap::new();
    let mut params = ListParams::default().limit(PAGE);
    params.field_selector = name.map(|name| format!("metadata.name={name}"));
    loop {
        let page = in_time(api.list(&params)).await?;
        for slice in page.items {
            let version = slice.metadata.resource_version.unwrap_or_default();
            let name = slice.metadata.name.unwrap_or_default();
            written.insert(name, WrittenSlice { version, spec: slice.spec });
        }
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(written);
        }
    }
}

/// # Errors
/// The request failed, or was not answered in [`PATIENCE`].
pub(super) async fn in_time<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    let answer = tokio::time::timeout(PATIENCE, request).await;
    answer.unwrap_or_else(|_| Err(kube::Error::Service("no answer in time".into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(version: &str) -> WrittenSlice {
        WrittenSlice { version: version.into(), spec: PeerSliceSpec::default() }
    }

    #[test]
    fn a_read_shows_nothing_about_slices_that_were_written_meanwhile() {
        let now = Instant::now();
        let mut reads = PeerReads { began: Some(now), ..PeerReads::default() };
        reads.written.insert("in-flight".into());
        assert!(!reads.may_begin(now));
        reads.begin_write("begun");
        let names = ["begun", "gone", "in-flight", "same"].map(str::to_owned);
        let found = names.iter().filter(|name| *name != "gone");
        let found: WrittenByName = found.map(|name| (name.clone(), slice("1"))).collect();
        let answer = Ok(FoundSlices { names: None, found });
        let ended =
            reads.end(answer, names.into_iter(), now).unwrap_or_else(|error| panic!("{error}"));
        let versions = ended.slices.iter().map(|(name, slice)| {
            (name.as_str(), slice.as_ref().map(|slice| slice.version.as_str()))
        });
        assert_eq!(versions.collect::<Vec<_>>(), [("gone", None), ("same", Some("1"))]);
        reads.begin_write("later");
        assert!(reads.may_begin(now) && reads.written.is_empty());
    }

    #[test]
    fn a_failed_read_begins_again_after_a_pause() {
        let now = Instant::now();
        let mut reads = PeerReads { began: Some(now), ..PeerReads::default() };
        let lost = kube::Error::Service("no answer in time".into());
        assert!(reads.end(Err(lost), [].into_iter(), now).is_err());
        assert!(!reads.may_begin(now) && reads.may_begin(now + RETRY));
    }
}
