//! Stack use of the programs, computed from the built object; no kernel is needed.
//!
//! The kernel allows 512 bytes along a chain of calls. A function counts as the deepest byte of its frame that it
//! reads, writes or takes the address of, rounded up to 32 bytes by older kernels, and as 32 if it uses none
//! (`check_max_stack_depth` in kernel/bpf/verifier.c). The result here may exceed the verifier's, which skips
//! unreachable code.

use std::collections::BTreeMap;

use netpold_dataplane::object::{TRACED_OBJECT, object};
use object::{
    Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, SectionKind, SymbolKind,
};

/// Bound of the deepest chain: one frame less than the kernel allows.
const BUDGET: u32 = 480;
/// Bound of the deepest chain of a traced program: all that the kernel allows.
const TRACED_BUDGET: u32 = 512;
/// Maximum number of functions in a chain (`MAX_CALL_FRAMES`).
const FRAMES: usize = 8;
const ROUNDED_TO: u32 = 32;

const INSTRUCTION: usize = 8;
const FRAME_POINTER: u8 = 10;
const CLASS: u8 = 0x07;
const LDX: u8 = 0x01;
const ST: u8 = 0x02;
const STX: u8 = 0x03;
const JMP: u8 = 0x05;
const LOAD_IMMEDIATE: u8 = 0x18;
const CALL: u8 = 0x85;
const MOVE: u8 = 0xbf;
const ADD_IMMEDIATE: u8 = 0x07;
const PSEUDO_CALL: u8 = 1;
const PSEUDO_FUNCTION: u8 = 4;

/// Start of a function: number of its section, and offset in the section.
type Place = (usize, u64);

#[derive(Debug)]
struct Function {
    name: String,
    /// Deepest byte below the frame pointer.
    depth: u32,
    calls: Vec<Place>,
    /// Whether a program starts with this function.
    is_entry: bool,
}

/// Registers that point into the frame, as far as known from the instructions before.
#[derive(Default)]
struct Pointers([Option<i32>; 11]);

impl Pointers {
    /// Returns the deepest byte that an instruction accesses or points at, as an offset from the frame pointer.
    fn follow(
        &mut self,
        code: u8,
        (to, from): (u8, u8),
        offset: i16,
        immediate: i32,
    ) -> Option<i32> {
        self.0[usize::from(FRAME_POINTER)] = Some(0);
        let of = |register: u8| self.0[usize::from(register)];
        let touched = match code & CLASS {
            LDX => of(from),
            ST | STX => of(to),
            _ => None,
        };
        let touched = touched.map(|base| base + i32::from(offset));
        let pointer = match code {
            MOVE => of(from),
            ADD_IMMEDIATE => of(to).map(|base| base + immediate),
            _ => None,
        };
        match code & CLASS {
            ST | STX | JMP => {}
            _ => self.0[usize::from(to)] = pointer,
        }
        if code == CALL {
            self.0[..6].fill(None);
        }
        touched.into_iter().chain(pointer).min()
    }
}

/// Returns all functions of the object.
fn functions(bytes: &[u8]) -> BTreeMap<Place, Function> {
    let file = object::File::parse(bytes).expect("an ELF object");
    let mut functions = BTreeMap::new();
    for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
        let code = section.data().expect("code");
        let relocations: BTreeMap<u64, Place> = section
            .relocations()
            .filter_map(|(at, relocation)| {
                let RelocationTarget::Symbol(symbol) = relocation.target() else { return None };
                let symbol = file.symbol_by_index(symbol).expect("a symbol");
                Some((at, (symbol.section_index()?.0, symbol.address())))
            })
            .collect();
        let symbols = file.symbols().filter(|symbol| {
            symbol.kind() == SymbolKind::Text && symbol.section_index() == Some(section.index())
        });
        for symbol in symbols {
            let (start, end) = (symbol.address(), symbol.address() + symbol.size());
            let mut function = Function {
                name: symbol.name().expect("a name").to_owned(),
                depth: 0,
                calls: Vec::new(),
                is_entry: section.name() != Ok(".text"),
            };
            let mut pointers = Pointers::default();
            let mut at = start;
            while at < end {
                let from = at as usize;
                let Some(&[code, registers, low, high, a, b, c, d]) =
                    code.get(from..from + INSTRUCTION)
                else {
                    panic!("{} ends in the middle of an instruction", function.name)
                };
                let (to, from) = (registers & 0xf, registers >> 4);
                let offset = i16::from_le_bytes([low, high]);
                let immediate = i32::from_le_bytes([a, b, c, d]);
                let deepest = pointers.follow(code, (to, from), offset, immediate).unwrap_or(0);
                function.depth = function.depth.max(deepest.min(0).unsigned_abs());
                if code == CALL && from == PSEUDO_CALL {
                    // Relative to the next instruction, or to the symbol.
                    let base = relocations.get(&at).copied();
                    let (section, base) = base.unwrap_or((section.index().0, at));
                    let target = base.wrapping_add_signed((i64::from(immediate) + 1) * 8);
                    function.calls.push((section, target));
                }
                let wide = code == LOAD_IMMEDIATE;
                assert!(
                    !wide || from != PSEUDO_FUNCTION,
                    "a pointer to a function is not followed"
                );
                at += if wide { 2 } else { 1 } * INSTRUCTION as u64;
            }
            functions.insert((section.index().0, start), function);
        }
    }
    functions
}

/// Returns the deepest chain of calls from a function, with its size.
fn deepest(functions: &BTreeMap<Place, Function>, place: Place) -> (u32, Vec<&Function>) {
    let function = functions.get(&place).expect("what is called is a function");
    let (below, mut chain) = function
        .calls
        .iter()
        .map(|call| deepest(functions, *call))
        .max_by_key(|it| it.0)
        .unwrap_or_default();
    chain.insert(0, function);
    (below + function.depth.max(1).next_multiple_of(ROUNDED_TO), chain)
}

/// Prints each program's deepest chain.
#[test]
fn no_chain_of_calls_takes_more_stack_than_the_budget() {
    let Ok(bytes) = object() else {
        let test = "no_chain_of_calls_takes_more_stack_than_the_budget";
        return netpold_testbed::skip(test, "built without the eBPF program");
    };
    no_chain_takes_more(bytes, BUDGET, |_| true);
    // Only the programs that a trace loads.
    let judges = ["netpold_ingress", "netpold_egress"];
    no_chain_takes_more(TRACED_OBJECT, TRACED_BUDGET, |name| judges.contains(&name));
}

/// Asserts that no program with a selected name has a chain deeper than the budget.
fn no_chain_takes_more(bytes: &[u8], budget: u32, of: impl Fn(&str) -> bool) {
    let functions = functions(bytes);
    let entries = || functions.iter().filter(|(_, function)| function.is_entry);
    assert!(entries().count() > 8 && functions.len() > entries().count(), "or they are not found");
    let entries = || entries().filter(|(_, function)| of(&function.name));
    let (mut calls, mut over) = (0, Vec::new());
    for (place, function) in entries() {
        let (bytes, chain) = deepest(&functions, *place);
        let text: Vec<_> = chain.iter().map(|it| format!("{} {}", it.name, it.depth)).collect();
        println!("{bytes} bytes: {}", text.join(" > "));
        calls = calls.max(chain.len() - 1);
        if bytes > budget || chain.len() > FRAMES {
            over.push((&function.name, bytes, text));
        }
    }
    assert!(calls > 0, "no calls were found");
    assert!(over.is_empty(), "more than {budget} bytes of stack: {over:?}");
}

/// Checks the depth of a few instructions.
#[test]
fn a_frame_reaches_as_far_as_anything_in_it() {
    let depth = |instructions: &[(u8, (u8, u8), i16, i32)]| {
        let mut pointers = Pointers::default();
        let all = instructions.iter().filter_map(|&(code, registers, offset, immediate)| {
            pointers.follow(code, registers, offset, immediate)
        });
        all.min().unwrap_or(0)
    };
    let store = |to, offset| (0x7b, (to, 1), offset, 0);
    assert_eq!(depth(&[store(10, -8), store(10, -24), store(10, -16)]), -24);
    assert_eq!(depth(&[(0x79, (1, 10), -32, 0)]), -32, "a load");
    assert_eq!(depth(&[(MOVE, (2, 10), 0, 0), (ADD_IMMEDIATE, (2, 0), 0, -40)]), -40, "an address");
    let copied = [(MOVE, (2, 10), 0, 0), (MOVE, (3, 2), 0, 0), store(3, -48)];
    assert_eq!(depth(&copied), -48, "a store by a copy of the pointer");
    let other = [(MOVE, (2, 10), 0, 0), (0xb7, (2, 0), 0, 0), (ADD_IMMEDIATE, (2, 0), 0, -64)];
    assert_eq!(depth(&other), 0, "a number");
}
