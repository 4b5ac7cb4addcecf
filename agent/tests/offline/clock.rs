//! The kernel's tick rate as measured by the agent. Needs root.

use std::os::fd::AsFd;
use std::process::Command;

use aya::{EbpfLoader, programs::SchedClassifier};
use netpold_dataplane::bpf::test_run::jiffies;
use netpold_dataplane::conntrack::{measure_hz, tick_rate};

#[test]
fn the_measured_tick_rate_is_config_hz() {
    let object = netpold_dataplane::object::object().expect("the eBPF object");
    let mut bpf = EbpfLoader::new().load(object).expect("maps");
    let clock: &mut SchedClassifier = bpf.program_mut("netpold_clock").unwrap().try_into().unwrap();
    clock.load().unwrap();
    let hz = measure_hz(|| jiffies(clock.fd().map_err(std::io::Error::other)?.as_fd())).unwrap();
    let config = Command::new("zcat").arg("/proc/config.gz").output().unwrap();
    let config = String::from_utf8_lossy(&config.stdout);
    println!("{hz} ticks a second");
    assert_eq!(tick_rate(), Some(hz), "the coarse clock's resolution is one tick");
    if let Some(configured) = config.lines().find_map(|line| line.strip_prefix("CONFIG_HZ=")) {
        assert_eq!(configured, hz.to_string());
    }
}
