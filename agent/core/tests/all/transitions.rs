//! Updates over generated pairs of cluster states: every packet gets the verdict of the state before or after, and the
//! installed tables do not depend on the path.

#![expect(clippy::panic, reason = "helpers of tests")]

use std::collections::BTreeSet;

use netpold_core::cluster::ObjectKey;
use netpold_core::compile::Compiler;
use netpold_core::model::Change;
use netpold_testkit::generate::{Choices, GeneratedCluster, NODE, shrink_all};
use netpold_testkit::memory::MemoryTables;
use netpold_testkit::transition::{View, install, same, step};
use netpold_testkit::world::World;

/// Interfaces as CNI plugins create them: some share slots, are created again, are missing, or have no pod.
fn disturb(mut state: GeneratedCluster, choices: &mut Choices<'_>) -> GeneratedCluster {
    state.objects.retain(|object| {
        let may_be_missing = matches!(object, Change::Interface(_) | Change::Pod(_));
        !may_be_missing || choices.chance(93)
    });
    for object in &mut state.objects {
        if let Change::Interface(interface) = object {
            interface.incarnation += u64::from(choices.chance(20));
            // Same slots as the interface before.
            if interface.index % 2 == 1 {
                interface.index += 8191;
            }
        }
    }
    state
}

/// A cluster, a mutation of it, and an unrelated cluster.
fn any_states(choices: &mut Choices<'_>) -> [GeneratedCluster; 3] {
    let first = GeneratedCluster::generate(choices);
    let second = (0..=choices.below(3)).fold(first.clone(), |state, _| state.mutate(choices));
    let third = GeneratedCluster::generate(choices);
    [first, second, third].map(|state| disturb(state, choices))
}

/// Runs a test on many clusters; a failure is reported for the smallest clusters that still fail.
fn on_states(
    count: u64,
    test: impl Fn([&GeneratedCluster; 3], &mut Choices<'_>) -> Result<(), String>,
) {
    for seed in 0..count {
        let states = any_states(&mut Choices::from_seed(seed));
        let run = |states: &[GeneratedCluster]| {
            let [first, second, third] = states else { return Ok(()) };
            test([first, second, third], &mut Choices::from_seed(!seed))
        };
        if run(&states).is_err() {
            let states = shrink_all(states.to_vec(), |states| run(states).is_err());
            let clusters: Vec<String> = states.iter().map(ToString::to_string).collect();
            panic!("seed {seed}: {:?}\n{}", run(&states), clusters.join("\n"));
        }
    }
}

#[test]
fn every_packet_sees_before_or_after() {
    on_states(200, |[first, second, third], choices| {
        let mut world = install(first);
        for (from, to) in [(first, second), (second, third), (third, first)] {
            step(&mut world, from, to, choices)?;
        }
        world.compiler.grace_passed();
        same(&world.compiler.update().unwrap(), &Vec::new(), "an update without changes")
    });
}

#[test]
fn state_not_path() {
    on_states(200, |[first, second, _], choices| {
        let fresh = install(second);
        let direct = || second.objects.iter().cloned();
        let mut turned: Vec<Change> = direct().collect();
        let first_of_turned = choices.below(turned.len() as u32 + 1);
        turned.rotate_left(first_of_turned as usize);
        // Through the other state, with every object sent twice.
        let detour = first.objects.iter().cloned().chain(first.changes_to(second));
        let detour = detour.flat_map(|change| [change.clone(), change]);
        // All objects removed and sent again.
        let again = direct().chain(second.objects.iter().map(Change::removal)).chain(direct());
        let view = View::of(&[first, second], choices);
        for way in [direct().rev().collect(), turned, detour.collect(), again.collect::<Vec<_>>()] {
            let mut world = World::on(NODE, []);
            for part in way.chunks(1 + choices.below(4) as usize) {
                world.apply(part.to_vec());
            }
            same(&world.compiler.image(), &fresh.compiler.image(), "image")?;
            same(&view.verdicts(&world.tables), &view.verdicts(&fresh.tables), "verdicts")?;
        }
        Ok(())
    });
}

/// A compiler that takes over the objects of another one, and later the changed objects.
#[test]
fn a_successor_is_as_if_it_had_been_there() {
    on_states(400, |[first, second, _], choices| {
        let mut world = install(first);
        let mut successor = world.compiler.blank();
        successor.take_over(world.compiler.all_objects());
        let mut tables = MemoryTables::new();
        tables.fill(&successor.recompile(world.compiler.capacity(), |_, _| None).unwrap());
        same(&successor.image(), &world.compiler.image(), "image")?;
        successor.grace_passed();
        let changes = first.changes_to(second);
        let changed: BTreeSet<ObjectKey> = changes.iter().map(ObjectKey::of).collect();
        world.apply(changes);
        successor.take_over(world.compiler.changed_objects(changed));
        tables.fill(&successor.update().unwrap());
        same(&successor.image(), &world.compiler.image(), "image later")?;
        let view = View::of(&[first, second], choices);
        same(&view.verdicts(&tables), &view.verdicts(&world.tables), "verdicts")?;
        let numbers = |it: &Compiler| it.endpoints().map(|e| (e.ifindex, e.id)).collect::<Vec<_>>();
        same(&numbers(&successor), &numbers(&world.compiler), "numbers")
    });
}
