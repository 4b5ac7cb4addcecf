//! Details of the objects of a cluster, or of the manifests that stand for one.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use super::fields::Details;
use super::pages::{PAGES, foreign_groups, foreign_lists};
use crate::live::{self, ClusterArgs};
use crate::offline::Recursive;

/// Reads the details of a cluster. Returns also a message for each list that cannot be read.
pub async fn read_cluster(cluster: &ClusterArgs) -> (Details, Vec<String>) {
    let (mut details, mut unread) = (Details::default(), Vec::new());
    for page in PAGES {
        let read = live::pages(cluster, page.path, |json| details.add_page(page, json)).await;
        unread.extend(read.err().map(|error| format!("{}: {error:#}", page.effect)));
    }
    unread.extend(foreign_policies(cluster, &mut details).await);
    (details, unread)
}

/// Reads the details of the objects of a directory or of standard input, or else of the selected cluster. Objects without
/// a namespace belong to `namespace`, also those that are added later.
///
/// # Errors
/// A file cannot be read, or the runtime cannot be started.
pub fn read_details(
    manifests: Option<&Path>,
    depth: Recursive,
    cluster: &ClusterArgs,
    namespace: &str,
) -> Result<Details> {
    match manifests {
        Some(path) => Details::read(path, namespace, depth),
        None if cluster.is_requested() => {
            let namespace = Some(namespace.to_owned());
            Ok(Details { namespace, ..details_of_policies(cluster)? })
        }
        None => Ok(Details::within(namespace)),
    }
}

/// Reads the details of a cluster that explanations use: policies, nodes, Services and policies of other APIs. Objects
/// that the user may not read are left out.
///
/// # Errors
/// The runtime cannot be started.
fn details_of_policies(cluster: &ClusterArgs) -> Result<Details> {
    live::block_on(async {
        let mut details = Details::default();
        for page in PAGES.into_iter().filter(|page| page.is_for_explain) {
            let read = live::pages(cluster, page.path, |json| details.add_page(page, json));
            drop(read.await);
        }
        drop(foreign_policies(cluster, &mut details).await);
        Ok(details)
    })
}

/// Reads the policies of other APIs in a cluster. Returns the errors.
async fn foreign_policies(cluster: &ClusterArgs, details: &mut Details) -> Vec<String> {
    let mut unread = Vec::new();
    let mut note = |read: Result<()>| {
        unread.extend(read.err().map(|error| format!("policies of other APIs: {error:#}")));
    };
    let mut groups = Vec::new();
    note(
        live::pages(cluster, "/apis", |json| {
            groups = foreign_groups(json)?;
            Ok(None)
        })
        .await,
    );
    let mut read = BTreeSet::new();
    for group in groups {
        let mut lists = Vec::new();
        let found = live::pages(cluster, &group, |json| {
            lists = foreign_lists(&group, json)?;
            Ok(None)
        });
        note(found.await);
        for (kind, path) in lists {
            // The server's preferred version comes first.
            if read.insert(kind) {
                note(
                    live::pages(cluster, &path, |json| details.add_foreign_page(kind, json)).await,
                );
            }
        }
    }
    unread
}
