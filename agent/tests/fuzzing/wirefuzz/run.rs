//! Rounds of packets, until a frame leaks or the time ends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::{Duration, Instant, SystemTime};

use netpold_testbed::Offload;
use netpold_testbed::cluster::PATIENCE;

use crate::wirefuzz::generate::{Generator, number_in};
use crate::wirefuzz::judge::{History, Sent, effective_sender, judge};
use crate::wirefuzz::read;
use crate::wirefuzz::tally::Tally;
use crate::wirefuzz::traits::Trait;
use crate::wirefuzz::world::{Kind, World};

/// Number of packets between two collections of arrivals.
const BURST: usize = 40;
/// Number of bursts between two checks of the flows that run alongside.
const BURSTS: usize = 25;
/// Time without arrivals after which all packets have arrived.
const QUIET: Duration = Duration::from_millis(30);
/// Maximum number of packets before a leak that are sent again.
const WINDOW: usize = 2000;
/// Maximum number of packets kept, so that a run of hours does not fill the memory.
const KEPT: usize = 50_000;
/// Maximum number of attempts to shorten a failing sequence.
const ATTEMPTS: usize = 60;
/// Number of worlds that share the time.
const WORLDS: u32 = 3;
/// Seconds for all worlds together, under CI and without.
const LONG: u64 = 120;
const SHORT: u64 = 60;

/// Frame that must not have arrived.
#[derive(Clone, Debug)]
struct Leak {
    number: usize,
    receiver: usize,
    why: String,
}

struct Run {
    world: World,
    history: History,
    sent: VecDeque<Sent>,
    /// Number of the first packet in `sent`.
    first: usize,
    /// Arrivals to judge once all earlier arrivals are recorded: receiver, frame, packet number.
    pending: Vec<(usize, Vec<u8>, usize)>,
    arrived: usize,
    tally: Tally,
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

pub(crate) fn fuzz(kind: Kind) {
    let seconds = setting("NETPOLD_WIREFUZZ_SECONDS");
    let clock = || {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.map_or(1, |now| now.as_secs())
    };
    let seed =
        setting("NETPOLD_WIREFUZZ_SEED").unwrap_or(if seconds.is_some() { clock() } else { 1 });
    let ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let time = seconds.unwrap_or(if ci { LONG } else { SHORT });
    let time = Duration::from_secs(time) / WORLDS;
    println!("NETPOLD_WIREFUZZ_SEED={seed}, {kind:?} for {time:?}");
    let mut generator = Generator::new(seed);
    let mut run = Run::new(World::new(kind));
    let mut leaks: BTreeMap<BTreeSet<Trait>, (usize, String)> = BTreeMap::new();
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        for leak in run.round(&mut generator) {
            let Some(sent) = run.packet(leak.number) else { continue };
            let known = leaks.entry(sent.traits.clone()).or_default();
            known.0 += 1;
            if known.0 == 1 {
                known.1 = run.report(&leak);
            }
        }
        if !leaks.is_empty() {
            break;
        }
        run.world.check_flows();
    }
    println!("{} packets sent, {} frames arrived\n{}", run.count(), run.arrived, run.tally);
    assert!(run.arrived > run.count() / 20, "too few packets arrive for the test to show a leak");
    let mut text = String::new();
    for (traits, (count, report)) in &leaks {
        let _ = writeln!(text, "{count} with {traits:?}: {report}");
    }
    assert!(leaks.is_empty(), "{kind:?}, NETPOLD_WIREFUZZ_SEED={seed}:\n{text}");
    run.world.check_between(kind);
    run.tally.check(kind, run.world.bounces);
}

impl Run {
    fn new(world: World) -> Self {
        let history = History::default();
        let (sent, pending) = (VecDeque::new(), Vec::new());
        let tally = Tally::default();
        Self { world, history, sent, first: 0, pending, arrived: 0, tally }
    }

    /// Returns the number of packets sent.
    fn count(&self) -> usize {
        self.first + self.sent.len()
    }

    fn packet(&self, number: usize) -> Option<&Sent> {
        self.sent.get(number.checked_sub(self.first)?)
    }

    fn round(&mut self, generator: &mut Generator) -> Vec<Leak> {
        let mut leaks = Vec::new();
        if generator.random.below(4) == 0 {
            self.world.cluster.nodes.iter().for_each(|node| node.forget_connections().unwrap());
            generator.forgotten = true;
        }
        for _ in 0..BURSTS {
            let began = Instant::now();
            self.burst(generator);
            leaks.extend(self.collect());
            // Leaves half of a CPU to other tests.
            std::thread::sleep(began.elapsed());
        }
        self.bounce(generator);
        leaks.extend(self.settle());
        for party in &self.world.parties {
            let lost = party.wire.lost().unwrap();
            assert_eq!(lost, 0, "{}: the raw socket had no room", party.name);
        }
        leaks
    }

    fn burst(&mut self, generator: &mut Generator) {
        for _ in 0..BURST {
            let sent = generator.next(&self.world, &self.history, self.count());
            self.history.record_sent(&self.world, &sent);
            self.tally.sent(&sent);
            self.send(&sent);
            self.keep(sent);
        }
    }

    /// Sends packets of one pod that bypass its program.
    fn bounce(&mut self, generator: &mut Generator) {
        if !self.world.bounces {
            return;
        }
        let sender = generator.random.below(self.world.pods());
        generator.bounces = true;
        let mut all: Vec<Sent> = Vec::new();
        while all.len() < BURST {
            let number = self.count() + all.len();
            all.extend(generator.next_of(&self.world, &self.history, (sender, number)));
        }
        generator.bounces = false;
        self.world.bounce(sender, || all.iter().for_each(|sent| self.put_on_wire(sent)));
        for sent in all {
            self.history.record_sent(&self.world, &sent);
            self.tally.sent(&sent);
            self.keep(sent);
        }
    }

    fn keep(&mut self, sent: Sent) {
        self.sent.push_back(sent);
        if self.sent.len() > KEPT {
            self.sent.pop_front();
            self.first += 1;
        }
    }

    fn send(&self, sent: &Sent) {
        if sent.traits.contains(&Trait::Bounced) {
            self.world.bounce(sent.sender, || self.put_on_wire(sent));
        } else {
            self.put_on_wire(sent);
        }
    }

    fn put_on_wire(&self, sent: &Sent) {
        let wire = &self.world.parties[sent.sender].wire;
        for frame in &sent.frames {
            // The kernel rejects frames longer than the MTU (after damage), and segments of another protocol.
            let _ = if sent.offload == Offload::default() {
                wire.send(frame)
            } else {
                wire.send_with(&sent.offload, frame)
            };
        }
    }

    /// Records new arrivals, then judges the arrivals of the previous call: every packet they could answer is
    /// recorded.
    fn collect(&mut self) -> Vec<Leak> {
        let mut new = Vec::new();
        for (receiver, party) in self.world.parties.iter().enumerate() {
            while let Some(frame) = party.wire.arrived() {
                let number = number_in(&frame);
                let sent = number.and_then(|number| Some((number, self.packet(number)?)));
                match sent.map(|(number, sent)| (number, effective_sender(&self.world, sent))) {
                    Some((number, sender)) => {
                        self.history.record_arrival(&self.world, (receiver, &frame), sender);
                        new.push((receiver, frame, number));
                    }
                    // Damaged, or from a kernel: the source address counts as the sender.
                    None => self.history.record_by_source(&self.world, receiver, &frame),
                }
            }
        }
        self.arrived += new.len();
        let before = std::mem::replace(&mut self.pending, new);
        before.into_iter().filter_map(|arrived| self.leak(&arrived)).collect()
    }

    fn leak(&mut self, (receiver, frame, number): &(usize, Vec<u8>, usize)) -> Option<Leak> {
        let (receiver, number) = (*receiver, *number);
        let sent = self.sent.get(number.checked_sub(self.first)?)?;
        match judge(&self.world, &self.history, (receiver, frame), sent) {
            Err(why) => return Some(Leak { number, receiver, why }),
            Ok(()) if receiver != sent.sender => {
                let parsed = read::frame(frame);
                self.tally.allowed(&self.world, (receiver, frame.len()), sent, parsed.as_ref());
            }
            Ok(()) => {}
        }
        None
    }

    /// Waits until no more packets arrive.
    fn settle(&mut self) -> Vec<Leak> {
        let (mut leaks, deadline) = (Vec::new(), Instant::now() + PATIENCE);
        loop {
            assert!(Instant::now() < deadline, "packets still arrive after the deadline");
            std::thread::sleep(QUIET);
            leaks.extend(self.collect());
            if self.pending.is_empty() {
                return leaks;
            }
        }
    }

    /// Returns whether a leak occurs again when these packets are sent once more, unchanged.
    fn again(&mut self, numbers: &[usize], leak: &Leak) -> bool {
        for number in numbers {
            if let Some(sent) = self.packet(*number) {
                self.send(sent);
            }
        }
        self.settle().iter().any(|found| found.number == leak.number)
    }

    /// Returns the report of a leak, with a short sequence of packets that causes it.
    fn report(&mut self, leak: &Leak) -> String {
        let sequence = self.shrink(leak);
        let party = |number: usize| self.world.parties[number].name.clone();
        let mut text =
            format!("packet {} at {}: {}\n", leak.number, party(leak.receiver), leak.why);
        match &sequence {
            Some(numbers) => {
                let _ = writeln!(text, "  repeated with {} packets:", numbers.len());
            }
            None => text += "  not repeated when the packets are sent again; the packet:\n",
        }
        for number in sequence.unwrap_or_else(|| vec![leak.number]).iter().rev().take(8).rev() {
            let Some(sent) = self.packet(*number) else { continue };
            let _ = writeln!(text, "  {} from {} {:?}", number, party(sent.sender), sent.traits);
            for frame in sent.frames.iter().take(4) {
                let shown: String =
                    frame.iter().take(120).map(|byte| format!("{byte:02x}")).collect();
                let _ = writeln!(text, "    {} bytes {shown}", frame.len());
            }
        }
        text
    }

    /// Returns the shortest sequence found that causes a leak in the nodes' present state; `None` if there is none.
    fn shrink(&mut self, leak: &Leak) -> Option<Vec<usize>> {
        let mut length = 1;
        let mut numbers = loop {
            let first = (leak.number + 1).saturating_sub(length);
            let all: Vec<usize> = (first..=leak.number).collect();
            if self.again(&all, leak) {
                break all;
            }
            if length >= WINDOW || first <= self.first {
                return None;
            }
            length *= 4;
        };
        let mut piece = numbers.len() / 2;
        let mut attempts = 0;
        while piece > 0 && attempts < ATTEMPTS {
            let mut at = 0;
            while at + piece < numbers.len() && attempts < ATTEMPTS {
                let mut fewer = numbers.clone();
                fewer.drain(at..at + piece);
                attempts += 1;
                if self.again(&fewer, leak) { numbers = fewer } else { at += piece }
            }
            piece /= 2;
        }
        Some(numbers)
    }
}
