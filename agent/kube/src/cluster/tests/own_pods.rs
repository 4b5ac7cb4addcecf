//! Lists of this node's pods beside peer slices.

use super::*;

/// Selector of the requests for this node's pods.
const OWN: &str = "fieldSelector=spec.nodeName%3Dn%2C";

fn version(minor: &str) -> Answer {
    let version = json!({
        "major": "1", "minor": minor, "gitVersion": "", "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
    });
    Answer(200, vec![version], false)
}

/// Returns the parameters of the lists of own pods after the selector, once there are as many.
async fn own_lists(server: &Server, count: usize) -> Vec<String> {
    let peers = FollowedPeers::Slices(PeerTimes::default());
    let nodes = FollowedNodes::Own;
    let (_source, _directory) = server.watched_by((nodes, peers), false, PATIENCE).await;
    let begin = std::time::Instant::now();
    loop {
        let requests = server.requests.lock().unwrap().clone();
        let lists = requests.iter().filter(|it| it.starts_with("pods list") && it.contains(OWN));
        let query = |list: &String| list.lines().next().unwrap_or_default().to_owned();
        let params = |list: &String| {
            let query = query(list);
            let params = query.trim_start_matches("pods list ").split('&');
            let params = params.filter(|it| !it.is_empty() && !it.starts_with("fieldSelector="));
            params.collect::<Vec<_>>().join("&")
        };
        let lists: Vec<String> = lists.map(params).collect();
        if lists.len() >= count {
            return lists;
        }
        assert!(begin.elapsed() < PATIENCE, "{lists:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const ANY: &str = "resourceVersion=0&resourceVersionMatch=NotOlderThan";

#[tokio::test(flavor = "multi_thread")]
async fn own_pods_come_from_the_cache_of_the_server_and_never_older_ones() {
    let server = Server::start(|resource, query, before| match resource {
        "version" => version("20"),
        "pods" if query.contains("watch=true") && before == 0 => status(410, "Expired"),
        "pods" if query.contains(OWN) && !query.contains("watch=true") => list(vec![], "7"),
        _ => without_objects(query),
    });
    let newer = "resourceVersion=7&resourceVersionMatch=NotOlderThan";
    assert_eq!(own_lists(&server, 2).await, [ANY, newer]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_that_is_refused_is_followed_by_etcd() {
    let server = Server::start(|resource, query, before| match resource {
        "version" => version("20"),
        "pods" if query.contains("resourceVersion=0") && before == 0 => status(500, "Timeout"),
        _ => without_objects(query),
    });
    assert_eq!(own_lists(&server, 2).await, [ANY, ""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_consistent_cache_is_asked_for_the_present_state() {
    let server = Server::start(|resource, query, _| match resource {
        "version" => version("31+"),
        _ => without_objects(query),
    });
    assert_eq!(own_lists(&server, 1).await, [""]);
}
