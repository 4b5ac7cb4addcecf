//! Origins of pods over time. Times are numbers of seconds.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use netpold_api::peer_slice::{HEARTBEAT, INDEX, PeerSlice, PeerSliceSpec};
use netpold_core::model::{Key, Pod, Requirement, Selector};
use netpold_slices::{Vocabulary, encode};
use netpold_testkit::objects;

use super::*;
use crate::cluster::outage::{Following, OutageMember};

/// Index of the kind of pods at the hub.
const PODS: usize = 3;
/// Index of the slices.
const SLICES: usize = 7;

struct World {
    peers: Peers,
    start: Instant,
    /// Versions of slices, and numbers of heartbeats.
    number: u64,
    /// Whether the API server answers.
    answers: bool,
    outage: Arc<Outage>,
    /// The other kinds.
    others: OutageMember,
    /// The slices.
    member: OutageMember,
    reported: BTreeMap<Key, Pod>,
    policies: Vec<Change>,
    _ends: (mpsc::Receiver<KindUpdate>, mpsc::Sender<KindUpdate>, mpsc::Sender<SliceEvent>),
}

fn pod(name: &str, app: &str) -> Pod {
    objects::pod("x", name, &[("app", app)], &["10.0.0.1"])
}

fn slice(name: &str, version: u64, spec: PeerSliceSpec) -> PeerSlice {
    let (name, version) = (Some(name.to_owned()), Some(version.to_string()));
    PeerSlice {
        metadata: ObjectMeta { name, resource_version: version, ..ObjectMeta::default() },
        spec,
    }
}

fn index(labels: &[&str]) -> PeerSliceSpec {
    let label_keys = labels.iter().map(|&label| label.to_owned()).collect();
    let names = Vocabulary { label_keys, ..Vocabulary::default() };
    PeerSliceSpec { vocabulary: Some((&names).into()), ..PeerSliceSpec::default() }
}

impl World {
    fn new() -> Self {
        let (hub, out) = (mpsc::channel(64), mpsc::channel(1));
        let events = mpsc::channel(1);
        let channels = PeerChannels { updates: out.1, out: hub.0, slices: events.1 };
        let kinds = PeerKinds { pods: PODS, slices: SLICES };
        let outage = Outage::new();
        let (others, member) = (outage.member(), outage.member());
        let start_pods: StartPods = Box::new(|_| tokio::spawn(std::future::pending()));
        let ask: AskServer = Box::new(|| tokio::spawn(std::future::pending()));
        let of_node = ("own", PeerTimes::default());
        let peers = Peers::new(channels, kinds, of_node, Arc::clone(&outage), (start_pods, ask));
        Self {
            peers,
            start: Instant::now(),
            number: 0,
            answers: true,
            outage,
            others,
            member,
            reported: BTreeMap::new(),
            policies: Vec::new(),
            _ends: (hub.1, out.0, events.0),
        }
    }

    fn at(&self, second: u64) -> Instant {
        self.start + Duration::from_secs(second)
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "of the many changes, the ones this is about"
    )]
    fn report(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Pod(pod) => drop(self.reported.insert(pod.key.clone(), pod)),
                Change::PodGone(key) => drop(self.reported.remove(&key)),
                other => self.policies.push(other),
            }
        }
    }

    fn decide(&mut self, second: u64) {
        self.peers.is_covered = None;
        let now = self.at(second);
        let mut answered = self.outage.answered();
        // An answer every second, unless it hangs.
        while self.answers && !self.outage.is_on() && answered < now {
            answered = now.min(answered + Duration::from_secs(1));
            self.peers.health.set_answered(answered, false, answered);
            self.outage.set_answered(answered);
        }
        let changes = self.peers.decide(now);
        self.report(changes);
    }

    fn event(&mut self, event: SliceEvent, second: u64) {
        let now = self.at(second);
        let changes = self.peers.take_event(event, now);
        self.report(changes);
        self.decide(second);
    }

    fn set(&mut self, name: &str, spec: PeerSliceSpec, second: u64) {
        self.number += 1;
        self.event(SliceEvent::Set(Box::new(slice(name, self.number, spec))), second);
    }

    fn pods(&mut self, number: u32, pods: &[Pod], second: u64) {
        self.set(&format!("peers-{number}"), encode(pods), second);
    }

    fn beat(&mut self, pods_version: u64, second: u64) {
        let number = i64::try_from(self.number).unwrap_or_default();
        let heartbeat = Some(PeerHeartbeat { number, pods_version });
        self.set(HEARTBEAT, PeerSliceSpec { heartbeat, ..PeerSliceSpec::default() }, second);
    }

    fn policy(&mut self, name: &str, label: &str) {
        self.policy_at(name, label, Duration::ZERO);
    }

    fn policy_at(&mut self, name: &str, label: &str, served: Duration) {
        let requirements = vec![Requirement::DoesNotExist(label.into())];
        let pods = Selector { requirements };
        let peers = Some(vec![netpold_core::model::Peer::Pods { namespaces: None, pods }]);
        let rules = Some(vec![objects::rule(peers, None)]);
        let policy = objects::policy("x", name, Selector::default(), rules, None);
        let changes = self.peers.held.apply_change(Change::Policy(policy), served);
        self.report(changes);
    }

    /// Changes of the watch of all pods.
    fn watched(&mut self, changes: Vec<Change>, version: u64, is_settled: bool) {
        let number = SLICES + self.peers.starts;
        let status = KindStatus::default();
        let at = Instant::now();
        let update = KindUpdate {
            kind: number,
            changes,
            at,
            status,
            is_settled,
            is_whole: is_settled,
            problems: None,
            version,
        };
        // This causes a decision at the present time, without a renewal.
        let changes = self.peers.take_pods(update);
        self.report(changes);
    }

    /// A world that uses slices: one with `p`, labelled "a".
    fn by_slices() -> Self {
        let mut world = Self::new();
        world.event(SliceEvent::Listed(vec![slice(INDEX, 1, index(&["app"]))]), 0);
        world.pods(0, &[pod("p", "a")], 0);
        world.beat(1, 0);
        assert!(world.reported.is_empty(), "the heartbeat may be of any age");
        world.beat(1, 1);
        assert_eq!(world.app("p"), Some("a"));
        world.peers.health.used(Duration::ZERO);
        world
    }

    fn app(&self, name: &str) -> Option<&str> {
        self.reported.get(&Key::new("x", name))?.labels.get("app").map(|value| &**value)
    }

    fn follows_pods(&self) -> bool {
        self.peers.all_pods.is_some()
    }
}

#[tokio::test]
async fn all_pods_are_followed_after_a_silence_and_slices_once_they_have_every_change() {
    let mut world = World::by_slices();
    world.decide(30);
    assert!(!world.follows_pods());
    world.decide(31);
    assert!(world.follows_pods());
    assert_eq!(world.app("p"), Some("a"), "the last known state");
    let changes = vec![Change::Pod(pod("p", "b"))];
    world.watched(changes, 20, true);
    assert_eq!(world.peers.view.origin(), PeerOrigin::Pods);
    (40..60).for_each(|second| world.beat(10, second));
    assert_eq!(world.peers.view.origin(), PeerOrigin::Pods, "the slices lack changes");
    // The watch's next changes wait.
    let changes = vec![Change::Pod(pod("p", "c"))];
    world.watched(changes, 30, true);
    world.pods(0, &[pod("p", "b")], 60);
    world.beat(20, 60);
    assert_eq!(world.peers.view.origin(), PeerOrigin::Slices);
    assert!(!world.follows_pods());
    assert_eq!(world.app("p"), Some("b"));
}

#[tokio::test]
async fn changes_that_wait_for_slices_come_into_force_if_the_slices_fail() {
    let mut world = World::by_slices();
    world.decide(31);
    world.watched(vec![Change::Pod(pod("p", "b"))], 20, true);
    (40..60).for_each(|second| world.beat(10, second));
    world.watched(vec![Change::Pod(pod("p", "c"))], 30, true);
    world.decide(70);
    assert_eq!((world.app("p"), world.follows_pods()), (Some("c"), true));
}

#[tokio::test]
async fn an_outage_of_slices_alone_is_none() {
    let mut world = World::by_slices();
    world.member.set(Following::Fails);
    let failed = SliceEvent::Failed { text: "no connection".into(), is_unreachable: true };
    world.event(failed, 5);
    assert!(!world.outage.is_on());
    world.decide(31);
    assert!(world.follows_pods());
}

#[tokio::test]
async fn no_agent_follows_all_pods_because_of_an_outage_of_the_api_server() {
    let mut world = World::by_slices();
    world.decide(31);
    assert!(world.follows_pods(), "the controller is silent");
    world.member.set(Following::Fails);
    world.others.set(Following::Fails);
    world.decide(40);
    assert!(!world.follows_pods());
    world.decide(1000);
    assert!(!world.follows_pods());
    world.others.set(Following::Works);
    world.outage.set_answered(world.at(1000));
    world.decide(1001);
    assert!(world.follows_pods(), "the controller was silent before");
}

#[tokio::test]
async fn no_agent_follows_all_pods_because_of_an_api_server_that_hangs() {
    let mut world = World::by_slices();
    world.decide(5);
    // No request fails before its timeout.
    world.answers = false;
    (6..300).for_each(|second| world.decide(second));
    assert!(!world.follows_pods() && !world.outage.is_on());
    assert_eq!(world.app("p"), Some("a"));
    world.outage.set_answered(world.at(300));
    world.answers = true;
    world.decide(300);
    world.decide(324);
    assert!(!world.follows_pods(), "the controller was silent for 4 and for 24 s");
    world.decide(326);
    assert!(world.follows_pods(), "the server answers, and the controller is silent");
}

#[tokio::test]
async fn the_server_is_asked_before_the_controller_counts_as_silent() {
    let mut world = World::by_slices();
    let ask = |world: &mut World, second: u64| {
        world.peers.asked = None;
        world.peers.check_api_server(world.at(second));
        world.peers.asked.is_some()
    };
    world.answers = false;
    assert!(!ask(&mut world, 10) && ask(&mut world, 11));
    world.others.set(Following::Fails);
    world.member.set(Following::Fails);
    assert!(!ask(&mut world, 11), "requests fail already");
}

#[tokio::test]
async fn a_heartbeat_of_a_list_does_not_show_that_the_controller_lives() {
    let mut world = World::by_slices();
    world.decide(25);
    let heartbeat = Some(PeerHeartbeat { number: 1000, pods_version: 30 });
    let heartbeat = PeerSliceSpec { heartbeat, ..PeerSliceSpec::default() };
    let listed = vec![slice(INDEX, 1, index(&["app"])), slice(HEARTBEAT, 9, heartbeat)];
    world.event(SliceEvent::Listed(listed), 25);
    world.decide(31);
    assert!(world.follows_pods(), "it may have ended after that heartbeat");
}

#[tokio::test]
async fn names_that_wait_behind_a_namespaces_own_make_no_agent_follow_all_pods() {
    for is_crowded in [true, false] {
        let mut world = World::by_slices();
        let own = Pod { node: "own".into(), ..pod("own", "a") };
        let own = world.peers.view.take_own(Change::Pod(own));
        world.report(own.into_iter().collect());
        world.pods(0, &[pod("own", "a"), pod("p", "a")], 1);
        world.policy("lacking", "team");
        let mut index = index(&["app"]);
        let names = index.vocabulary.as_mut().unwrap();
        names.crowded_namespaces = is_crowded.then(|| "x".to_owned()).into_iter().collect();
        world.set(INDEX, index, 1);
        (2..60).for_each(|second| world.beat(1, second));
        let problems = world.peers.slice_problems();
        assert_eq!(world.follows_pods(), !is_crowded, "{problems:?}");
    }
}

#[tokio::test]
async fn names_that_slices_get_at_present_make_no_agent_follow_all_pods_for_minutes() {
    let mut world = World::by_slices();
    let own = Pod { node: "own".into(), ..pod("own", "a") };
    let own = world.peers.view.take_own(Change::Pod(own));
    world.report(own.into_iter().collect());
    world.pods(0, &[pod("own", "a"), pod("p", "a")], 1);
    world.policy("lacking", "team");
    let mut index = index(&["app"]);
    let names = index.vocabulary.as_mut().unwrap();
    names.coming_label_keys = ["team".to_owned()].into();
    world.set(INDEX, index.clone(), 1);
    (2..240).for_each(|second| world.beat(1, second));
    assert!(!world.follows_pods(), "the controller writes them into slices");
    world.set(INDEX, index, 240);
    (241..280).for_each(|second| world.beat(1, second));
    assert!(world.follows_pods(), "another announcement of the same names grants no more time");
}

#[tokio::test]
async fn a_heartbeat_of_a_dead_controller_ends_no_watch_of_all_pods() {
    let mut world = World::by_slices();
    world.decide(31);
    world.watched(vec![Change::Pod(pod("p", "b"))], 1, true);
    // A short outage, and the list after it.
    world.others.set(Following::Fails);
    world.member.set(Following::Fails);
    world.decide(100);
    world.others.set(Following::Works);
    let number = i64::try_from(world.number - 1).unwrap_or_default();
    let heartbeat = Some(PeerHeartbeat { number, pods_version: 1 });
    let heartbeat = PeerSliceSpec { heartbeat, ..PeerSliceSpec::default() };
    let listed = vec![slice(INDEX, 1, index(&["app"])), slice(HEARTBEAT, 9, heartbeat)];
    world.event(SliceEvent::Listed(listed), 101);
    (102..130).for_each(|second| world.decide(second));
    assert_eq!((world.app("p"), world.follows_pods()), (Some("b"), true));
}

#[tokio::test]
async fn slices_with_a_broken_one_replace_no_watch_of_all_pods() {
    let mut world = World::by_slices();
    world.set("peers-1", PeerSliceSpec { pods: "AAAA".into(), ..PeerSliceSpec::default() }, 2);
    (3..40).for_each(|second| world.beat(30, second));
    assert!(world.follows_pods(), "it may hide any change");
    world.watched(vec![Change::Pod(pod("p", "b"))], 20, true);
    (40..60).for_each(|second| world.beat(30, second));
    assert_eq!((world.app("p"), world.follows_pods()), (Some("b"), true));
    world.pods(1, &[], 60);
    assert_eq!((world.app("p"), world.follows_pods()), (Some("a"), false));
}

#[tokio::test]
async fn policies_of_others_make_no_agent_follow_all_pods() {
    let mut world = World::by_slices();
    world.policy("lacking", "team");
    (2..60).for_each(|second| world.beat(1, second));
    assert!(!world.follows_pods(), "this node has no pod of its namespace");
    let own = Pod { node: "own".into(), ..pod("own", "a") };
    let own = world.peers.view.take_own(Change::Pod(own));
    world.report(own.into_iter().collect());
    (60..120).for_each(|second| world.beat(1, second));
    assert!(world.follows_pods(), "a pod of its namespace came");
}

/// A world that follows all pods, with renewed slices and a pod of this node in the policies' namespace.
fn before_the_return() -> World {
    let mut world = World::by_slices();
    let own = Pod { node: "own".into(), ..pod("own", "a") };
    let own = world.peers.view.take_own(Change::Pod(own));
    world.report(own.into_iter().collect());
    world.decide(31);
    world.watched(vec![Change::Pod(pod("p", "b"))], 20, true);
    world.pods(0, &[pod("own", "a"), pod("p", "b")], 40);
    (40..50).for_each(|second| world.beat(20, second));
    assert_eq!(world.peers.view.origin(), PeerOrigin::Pods);
    world
}

#[tokio::test]
async fn a_new_policy_is_not_reduced_by_the_return_to_slices() {
    let mut world = before_the_return();
    let served = world.peers.health.served();
    world.policy_at("new", "team", served);
    world.beat(20, 50);
    world.set(INDEX, index(&["app", "team"]), 51);
    world.beat(20, 52);
    assert_eq!(world.peers.view.origin(), PeerOrigin::Slices);
    let rules = world.policies.iter().filter_map(|change| {
        let Change::Policy(policy) = change else { return None };
        policy.ingress.as_ref().map(Vec::len)
    });
    assert_eq!(rules.collect::<Vec<_>>(), [1], "its grants are in force throughout");
}

#[tokio::test]
async fn policies_that_change_all_the_time_delay_the_return_to_slices_for_a_minute() {
    let mut world = before_the_return();
    for second in 50..111 {
        assert_eq!(world.peers.view.origin(), PeerOrigin::Pods, "{second}");
        let served = world.peers.health.served();
        world.policy_at("new", &format!("team-{second}"), served);
        world.beat(20, second);
    }
    assert_eq!(world.peers.view.origin(), PeerOrigin::Slices);
}
